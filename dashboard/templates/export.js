/* Draws the coarsest level first and the finest one that contains what is visible after each zoom. */
(function () {
  "use strict";
  const plot = document.getElementById("plot");
  const source = document.getElementById("data").textContent;
  const toggle = document.getElementById("theme-toggle");
  let theme = window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  let data = null;
  let shown = -1;

  function load() {
    data = JSON.parse(source);
    if (theme === "dark") {
      // All colours at once, so that no replaced colour is replaced again.
      const map = new Map(data.colours);
      const pattern = new RegExp(data.colours.map((pair) => pair[0]).join("|"), "g");
      const swapped = JSON.stringify(data.levels).replace(pattern, (colour) => map.get(colour));
      data.levels = JSON.parse(swapped);
    }
    document.documentElement.dataset.theme = theme;
    toggle.textContent = theme === "dark" ? "Light" : "Dark";
  }

  function best(low, high) {
    let found = 0;
    data.levels.forEach(function (level, i) {
      const width = level.to - level.from;
      if (level.from <= low + 1e-6 && level.to >= high - 1e-6 && width < data.levels[found].to - data.levels[found].from) found = i;
    });
    return found;
  }

  function draw(low, high, force) {
    const whole = data.levels[0];
    if (low === undefined) { low = whole.from; high = whole.to; }
    const level = best(low, high);
    if (level === shown && !force) return Plotly.relayout(plot, { "xaxis.range": [low, high] });
    shown = level;
    const spec = data.levels[level];
    const layout = Object.assign({}, spec.layout);
    layout.xaxis = Object.assign({}, spec.layout.xaxis, { range: [low, high], uirevision: low + ":" + high });
    document.getElementById("note").textContent =
      spec.marks.toLocaleString("en") + " marks. Drag or scroll to zoom, double-click for the whole step. " +
      "Marks that stand for several spans are as tall as the share of time they were busy.";
    return Plotly.react(plot, spec.data, layout, { displayModeBar: false, scrollZoom: true, responsive: true, doubleClick: false });
  }

  function go(text) {
    const parts = text.split(":").map(Number);
    if (parts.length === 2 && parts[0] < parts[1]) draw(parts[0], parts[1]);
  }

  load();
  draw(undefined, undefined, true).then(function () {
    plot.on("plotly_relayout", function (change) {
      if ("xaxis.range[0]" in change) draw(change["xaxis.range[0]"], change["xaxis.range[1]"]);
    });
    plot.on("plotly_doubleclick", function () { draw(); return false; });
  });
  document.getElementById("whole-step").addEventListener("click", function () { draw(); });
  document.getElementById("layer-jump").addEventListener("change", function (event) { go(event.target.value); });
  document.addEventListener("click", function (event) {
    const row = event.target.closest("[data-window]");
    if (row) go(row.dataset.window);
  });
  toggle.addEventListener("click", function () {
    const range = plot.layout.xaxis.range;
    theme = theme === "dark" ? "light" : "dark";
    load();
    draw(range[0], range[1], true);
  });
})();
