(() => {
  "use strict";
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const config = { responsive: true, displayModeBar: false };

  // "@name" stands for the CSS variable --name, which differs between light, dark and print.
  const coloured = (value, style) => {
    if (typeof value === "string" && value.startsWith("@"))
      return style.getPropertyValue("--" + value.slice(1)).trim();
    if (Array.isArray(value)) return value.map((item) => coloured(item, style));
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(
      Object.entries(value).map(([key, item]) => [key, coloured(item, style)]));
  };

  const print = matchMedia("print");

  const draw = () => {
    const style = getComputedStyle(document.documentElement);
    for (const [id, figure] of Object.entries(figures)) {
      const { data, layout } = coloured(figure, style);
      // Plotly resizes later; paper does not wait.
      if (print.matches) layout.width = document.getElementById(id).clientWidth;
      Plotly.react(id, data, layout, config);
    }
    document.documentElement.dataset.drawn = "true";
  };

  draw();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  print.addEventListener("change", draw);
})();
