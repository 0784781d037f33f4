// Pictures can be drawn; otherwise their numbers stay in their place. Before anything is painted.
if ("DecompressionStream" in window) document.documentElement.classList.remove("plain");
