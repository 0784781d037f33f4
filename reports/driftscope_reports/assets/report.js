
(() => {
  "use strict";
  const byId = (id) => document.getElementById(id);
  const data = (id) => JSON.parse(byId(id).textContent);
  const figures = data("figures");
  const root = document.documentElement;
  const svgNs = "http://www.w3.org/2000/svg";

  const make = (tag, text, attributes = {}) => {
    const element = document.createElement(tag);
    if (text !== null) element.textContent = text;
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    return element;
  };
  const shape = (tag, attributes, text) => {
    const element = document.createElementNS(svgNs, tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    if (text) element.textContent = text;
    return element;
  };

  // ---- pictures: drawn when they become visible

  // "var(--name)" differs between light and dark, and plotly wants the colour itself.
  const coloured = (value, style) => {
    if (typeof value === "string")
      return value.startsWith("var(") ? style.getPropertyValue(value.slice(4, -1)).trim() : value;
    if (Array.isArray(value)) return value.map((item) => coloured(item, style));
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(
      Object.entries(value).map(([key, item]) => [key, coloured(item, style)]));
  };

  // The bundle is stored as packed text, so that parsing it delays no text; the policy has the hash of the unpacked code.
  let loading = null;
  const loadPlotly = () => loading ??= (async () => {
    const packed = Uint8Array.from(atob(byId("plotly").textContent), (sign) => sign.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    document.head.append(make("script", await new Response(stream).text()));
  })();

  const drawn = new Set();
  const draw = async (id) => {
    await loadPlotly();
    const live = byId("live-" + id);
    const { data: traces, layout } = coloured(figures[id], getComputedStyle(root));
    live.hidden = false;
    layout.width = live.parentElement.clientWidth;
    layout.height = live.parentElement.clientHeight;
    Plotly.react(live, traces, layout, { displayModeBar: false, scrollZoom: false });
    if (drawn.has(id)) return;
    drawn.add(id);
    live.on("plotly_hover", (event) => {
      if (live.parentElement.dataset.axis === "depth") mark(Number(event.points[0].x));
    });
    live.on("plotly_unhover", () => mark(null));
    root.dataset.drawn = String(drawn.size);
  };
  const redraw = () => drawn.forEach(draw);
  const watch = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      watch.unobserve(entry.target);
      draw(entry.target.closest("figure").id);
    }
  }, { rootMargin: "200px" });

  // ---- one depth, marked everywhere

  let depth = null;
  const across = (live) => {
    const axis = live._fullLayout.xaxis;
    return axis._offset + axis.l2p(depth);
  };
  const mark = (wanted) => {
    depth = wanted;
    for (const drawing of document.querySelectorAll('.drawing[data-axis="depth"]')) {
      let cursor = drawing.querySelector(".cursor");
      const live = drawing.querySelector(".live");
      const here = depth !== null && depth <= Number(drawing.dataset.depths) && live._fullLayout;
      if (!here) { if (cursor) cursor.hidden = true; continue; }
      if (!cursor) drawing.append(cursor = make("div", "", { class: "cursor", "aria-hidden": "true" }));
      cursor.hidden = false;
      cursor.dataset.word = String(depth);
      cursor.style.left = across(live) + "px";
    }
    for (const table of document.querySelectorAll('table[data-axis="depth"]'))
      for (const row of table.tBodies[0].rows)
        row.classList.toggle("at", Number(row.cells[0].textContent) === depth);
  };
  const say = (drawing) => {
    const figure = drawing.closest("figure");
    const head = figure.querySelector("thead tr");
    const row = figure.querySelector("tr.at");
    const values = row ? [...row.cells].slice(1).map((cell, at) =>
      head.cells[at + 1].textContent + " " + cell.textContent) : [];
    byId("said").textContent = drawing.dataset.word + " " + depth + ": " + values.join(", ");
  };
  for (const drawing of document.querySelectorAll('.drawing[data-axis="depth"]')) {
    const last = Number(drawing.dataset.depths);
    drawing.addEventListener("keydown", (event) => {
      const steps = { ArrowRight: 1, ArrowLeft: -1 };
      let next = null;
      if (event.key in steps) next = Math.min(Math.max((depth ?? 0) + steps[event.key], 1), last);
      else if (event.key === "Home") next = 1;
      else if (event.key === "End") next = last;
      else if (event.key !== "Escape") return;
      event.preventDefault();
      mark(next);
      if (next !== null) say(drawing);
    });
    drawing.addEventListener("blur", () => mark(null));
  }

  // ---- folded sections: a link opens what it leads to, and paper shows everything

  const reveal = () => {
    const target = location.hash.length > 1 ? byId(decodeURIComponent(location.hash.slice(1))) : null;
    if (!target) return;
    const fold = target.closest(".fold") ?? target.querySelector(":scope > .fold");
    if (!fold || fold.open) return;
    fold.open = true;
    target.scrollIntoView();
  };
  addEventListener("hashchange", reveal);
  for (const link of document.querySelectorAll("a[href^='#']"))
    link.addEventListener("click", () => setTimeout(reveal, 0));
  let unfolded = [];
  addEventListener("beforeprint", () => {
    unfolded = [...document.querySelectorAll(".fold:not([open]), .how:not([open])")];
    for (const each of unfolded) { each.name = ""; each.open = true; }
  });
  addEventListener("afterprint", () => {
    for (const each of unfolded) each.open = false;
  });
  addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    const open = event.target.closest(".pop[open]");
    if (!open) return;
    open.open = false;
    open.querySelector("summary").focus();
  });

  // ---- commands to copy

  for (const button of document.querySelectorAll("button.copy")) {
    button.hidden = false;
    button.addEventListener("click", async () => {
      const code = button.parentElement.querySelector("code");
      getSelection().selectAllChildren(code);
      try { await navigator.clipboard.writeText(code.textContent); }
      catch { document.execCommand("copy"); }
      button.textContent = "Copied";
      byId("said").textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
  }

  // ---- tables that sort, and that show a page of their rows

  const PAGE = 20;
  const value = (row, at) => {
    const text = row.cells[at].textContent.trim();
    const number = parseFloat(text.replace(/[,%×]/g, ""));
    return Number.isNaN(number) ? text : number * (/\d s$/.test(text) ? 1000 : 1);
  };
  const order = (a, b) => {
    if (a === "–") return b === "–" ? 0 : 1;
    if (b === "–") return -1;
    if (typeof a === "number" && typeof b === "number") return a - b;
    return String(a).localeCompare(String(b), "en", { numeric: true });
  };
  const pages = new Map();
  for (const table of document.querySelectorAll("table[data-sortable]")) {
    const body = table.tBodies[0];
    const more = make("button", "", { type: "button", class: "page" });
    let limit = PAGE;
    // Shows the rows that hold the words, and returns how many there are.
    const show = (words) => {
      closeStory();
      let count = 0;
      for (const row of body.rows) {
        const text = [...row.querySelectorAll("th, td.words")].map((cell) => cell.textContent);
        const fits = text.join(" ").toLowerCase().includes(words);
        count += fits ? 1 : 0;
        row.hidden = !fits || count > limit;
      }
      more.hidden = count <= limit;
      more.textContent = `Show all ${count} rows`;
      return count;
    };
    let wanted = "";
    more.addEventListener("click", () => { limit = Infinity; show(wanted); });
    pages.set(table, (words) => show(wanted = words));
    table.after(more);
    [...table.tHead.rows[0].cells].forEach((head, at, heads) => {
      if (head.tagName !== "TH") return;
      const button = make("button", head.textContent, { type: "button" });
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        closeStory();
        const up = head.getAttribute("aria-sort") !== "ascending";
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        const text = (row) => row.cells[at].textContent.trim();
        const rows = [...body.rows];
        const known = rows.filter((row) => text(row) !== "–");
        known.sort((a, b) => order(value(a, at), value(b, at)) * (up ? 1 : -1));
        body.append(...known, ...rows.filter((row) => text(row) === "–"));
        show(wanted);
      });
    });
  }

  // ---- requests: search, and one opened below its row

  const requests = byId("request-table");
  const closeStory = () => {
    byId("opened")?.remove();
    for (const button of document.querySelectorAll("button.open")) {
      button.setAttribute("aria-expanded", "false");
      button.closest("tr").classList.remove("opened");
    }
  };
  for (const show of pages.values()) show("");
  if (requests) {
    const box = byId("search");
    box.closest("[hidden]").hidden = false;
    box.addEventListener("input", () => {
      const wanted = box.value.trim().toLowerCase();
      const count = pages.get(requests)(wanted);
      byId("found").textContent = wanted ? count + " found" : "";
    });
    let stories = null;
    for (const button of requests.querySelectorAll("button.open")) {
      button.disabled = false;
      button.addEventListener("click", () => {
        const was = button.getAttribute("aria-expanded") === "true";
        closeStory();
        if (was) return;
        button.setAttribute("aria-expanded", "true");
        const row = button.closest("tr");
        row.classList.add("opened");
        stories ??= data("stories");
        const run = stories[button.dataset.run];
        const cell = make("td", null, { colspan: row.cells.length });
        const place = make("tr", null, { id: "opened" });
        place.append(cell);
        row.after(place);
        cell.append(...story(run, run.opened[button.dataset.at], requests.clientWidth));
        byId("said").textContent = cell.querySelector("h3").textContent;
      });
    }
  }

  const CELL = 14, LEFT = 26, TOP = 16;
  const CROSS = "m3.5 3.5l6 6m0-6l-6 6", DASH = "m3.5 6.5h6";
  const signed = (sign, x, y) => {
    if (sign.length > 1)
      return shape("path", { d: `M${x} ${y}${sign}`, fill: "none",
        stroke: "var(--panel)", "stroke-width": 1.5, "pointer-events": "none" });
    return shape("text", { x: x + CELL / 2, y: y + CELL - 4, "text-anchor": "middle",
      "pointer-events": "none", style: "fill:var(--panel)" }, sign);
  };
  // Rounds across, as many as fit a line, and depths down.
  const grid = (rounds, depths, paint, width) => {
    const most = Math.max(5, 5 * Math.floor((width - LEFT - 24) / CELL / 5));
    const out = [];
    for (let start = 0; start < rounds; start += most) {
      const count = Math.min(most, rounds - start);
      const size = { width: LEFT + count * CELL + 4, height: TOP + depths * CELL + 4 };
      const picture = shape("svg", { ...size, viewBox: `0 0 ${size.width} ${size.height}` });
      for (let d = 1; d <= depths && depths > 1; d += 1)
        picture.append(shape("text", { x: 4, y: TOP + d * CELL - 3 }, String(d)));
      for (let at = 0; at < count; at += 1) {
        const r = start + at, x = LEFT + at * CELL;
        if (r % 5 === 4) picture.append(shape("text", { x, y: 11 }, String(r + 1)));
        for (let d = 1; d <= depths; d += 1) {
          const [fill, title, sign] = paint(r, d);
          if (!fill) continue;
          const y = TOP + (d - 1) * CELL;
          const cell = shape("rect", { x, y, width: CELL - 1, height: CELL - 1, fill });
          cell.append(shape("title", {}, `round ${r + 1}, depth ${d}: ${title}`));
          picture.append(cell);
          if (sign) picture.append(signed(sign, x, y));
        }
      }
      out.push(picture);
    }
    return out;
  };
  const row = (name, pictures, label) => {
    const line = make("div", null, { class: "row" });
    const strips = make("div", null, { class: "strips", role: "img", "aria-label": label });
    strips.append(...pictures);
    line.append(make("span", name), strips);
    return line;
  };
  const SCALE = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];  // viridis
  const scale = (share) => {
    const at = Math.min(Math.max(share, 0), 1) * (SCALE.length - 1);
    const low = Math.min(Math.floor(at), SCALE.length - 2);
    const mixed = SCALE[low].map((a, i) => Math.round(a + (SCALE[low + 1][i] - a) * (at - low)));
    return `rgb(${mixed.join(",")})`;
  };
  const key = (entries) => {
    const list = make("ul", null, { class: "keys" });
    for (const [fill, words, sign] of entries) {
      const item = make("li", null);
      const swatch = shape("svg", { width: CELL, height: CELL, "aria-hidden": "true" });
      swatch.append(shape("rect", { width: CELL - 1, height: CELL - 1, fill }));
      if (sign) swatch.append(signed(sign, 0, 0));
      item.append(swatch, words);
      list.append(item);
    }
    return list;
  };
  const MASSES = [["self_mass", "the chain itself"], ["generated_mass", "verified output"],
    ["prompt_mass", "the prompt"], ["sink_mass", "the sink"], ["null_mass", "nothing (sink bias)"]];
  const REGIONS = { prose: "P", code: "C", diff: "D", json: "J", thinking: "T", markup: "M",
    number: "N", template: "S", guided: "G" };
  const texts = ({ text, accepted, verified }) => {
    const fold = make("details"), answer = make("p", null, { class: "kept" });
    const byRound = text.answer.length > 1;
    text.answer.forEach((piece, at) => {
      const fate = verified[at - 1] ? `, ${accepted[at - 1]} of ${verified[at - 1]} accepted` : "";
      answer.append(make("span", piece,
        byRound ? { title: at ? `round ${at}${fate}` : "before the first round" } : {}));
    });
    fold.append(make("summary", "Prompt and answer"), make("p", "Prompt:"),
      make("p", text.prompt, { class: "kept" }),
      make("p", byRound ? "Answer, its rounds shaded in turn:" : "Answer:"), answer);
    return fold;
  };
  const story = (run, opened, width) => {
    const rounds = opened.verified.length;
    const depths = Math.max(run.k, ...opened.verified);
    const fate = (r, d) => {
      if (!opened.verified[r])
        return [opened.reason[r] === "k_zero" ? "var(--same)" : "var(--apart)",
          "no draft: " + (opened.reason[r] ?? "unknown").replaceAll("_", " "), DASH];
      if (d <= opened.accepted[r]) return ["var(--good)", "accepted"];
      if (d <= opened.verified[r])
        return d === opened.accepted[r] + 1
          ? ["var(--high)", "rejected", CROSS] : ["var(--grid)", "after the rejected one"];
      return [null, ""];
    };
    const ids = opened.token_ids;
    const titled = (r, d) => {
      const [fill, words, sign] = fate(r, d);
      return [fill, ids && ids[r] ? `${words}, token ${ids[r][d - 1]}` : words, sign];
    };
    const more = opened.steps > rounds ? `, the first ${rounds} of ${opened.steps}` : "";
    const out = [make("h3", `Request ${opened.request} of ${run.label}: ${rounds} rounds${more}`)];
    if (opened.text) out.push(texts(opened));
    out.push(key([["var(--good)", "accepted"], ["var(--high)", "rejected: the chain ends here", CROSS],
      ["var(--grid)", "drafted after it, discarded"],
      ["var(--same)", "skipped on purpose: K = 0", DASH],
      ["var(--apart)", "skipped: no draft", DASH]]));
    const maps = make("div", null, { class: "maps" });
    maps.append(row("Rounds across, depths down", grid(rounds, depths, titled, width),
      `Accepted by round: ${opened.accepted.join(", ")}`));
    if (opened.region?.length) {
      const paint = (r) => {
        const name = opened.region[r];
        return [name === "prose" ? "var(--same)" : "var(--apart)",
          opened.copied[r] ? `${name}, repeats an earlier passage` : name, REGIONS[name]];
      };
      maps.append(row("Kind of text", grid(rounds, 1, paint, width),
        `Kind of text by round: ${opened.region.join(", ")}`));
      const kinds = [...new Set(opened.region)];
      out.push(maps, key(kinds.map((name) => {
        const [fill, , letter] = paint(opened.region.indexOf(name));
        return [fill, name, letter];
      })));
    } else out.push(maps);
    const most = (lists) =>
      Math.max(...lists.flatMap((each) => each ?? []).filter(Number.isFinite), 0);
    const masses = MASSES.filter(([name]) => (opened.masses ?? {})[name]?.some((each) => each))
      .map(([name, words]) => [words, opened.masses[name]]);
    const highest = most(masses.flatMap(([, lists]) => lists));
    const share = (value) => `${(100 * value).toPrecision(2)}%`;
    const drawn = masses.map(
      ([words, lists]) => [`attention on ${words}`, lists, highest, share]);
    const fed = opened.fed_rms ?? [];
    if (most(fed)) drawn.push(["RMS fed forward", fed, most(fed), String]);
    for (const [words, lists, top, say] of drawn) {
      const paint = (r, d) => {
        const number = lists[r] ? lists[r][d - 1] : null;
        return typeof number === "number" ? [scale(number / top), `${words} ${say(number)}`] : [null, ""];
      };
      const ends = `${words}, up to ${say(top)}`;
      maps.append(row(ends, grid(rounds, depths, paint, width), `${ends}, by round and depth`));
    }
    if (drawn.length) out.push(key([[scale(0), "0"], [scale(0.5), "half"], [scale(1), "the most"]]));
    else out.push(make("p", "Nothing was recorded inside the drafter for this request."));
    return out;
  };

  // ---- start

  if (!root.classList.contains("plain"))
    for (const drawing of document.querySelectorAll(".drawing")) watch.observe(drawing);
  reveal();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  let wide = innerWidth, waiting = 0;
  addEventListener("resize", () => {
    if (innerWidth === wide) return;
    wide = innerWidth;
    clearTimeout(waiting);
    waiting = setTimeout(redraw, 120);
  });
  root.dataset.ready = "true";
})();
