/* Client side of the dashboard: what must answer at once, without asking the server. */
(function () {
  "use strict";

  function parse(text) {
    const parts = String(text).split(":").map(Number);
    return parts.length >= 2 && parts[0] < parts[1] ? { start: parts[0], end: parts[1] } : null;
  }

  function fromAddress(search) {
    const query = new URLSearchParams(search || "");
    return query.has("from") && query.has("to") ? parse(query.get("from") + ":" + query.get("to")) : null;
  }

  function graph() {
    return document.querySelector("#timeline .js-plotly-plot");
  }

  window.dash_clientside = Object.assign({}, window.dash_clientside);
  window.dash_clientside.megascope = Object.assign({}, window.dash_clientside.megascope, {
    window: function (whole, layer, rows, search) {
        const context = window.dash_clientside.callback_context;
        const keep = window.dash_clientside.no_update;
        const cause = context.triggered_id;
        if (!context.triggered.length || cause === undefined) return fromAddress(search);
        if (cause === "whole-step") return whole ? null : keep;
        if (cause === "layer-jump") return layer ? parse(layer) : keep;
        if (cause && cause.type === "zoom") return context.triggered[0].value ? parse(cause.index) || keep : keep;
        return keep;
      },
      png: function (clicks, source, name) {
        // The picture is drawn at twice its size, sharp enough for a projector.
        if (!clicks || !source) return window.dash_clientside.no_update;
        const image = new Image();
        image.onload = function () {
          const canvas = document.createElement("canvas");
          canvas.width = 2 * image.naturalWidth;
          canvas.height = 2 * image.naturalHeight;
          canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
          const link = document.createElement("a");
          link.download = name.replace(/\.svg$/, ".png");
          link.href = canvas.toDataURL("image/png");
          link.click();
        };
        image.src = source;
        return clicks;
      },
      theme: function (clicks, stored) {
        let name = stored;
        if (clicks) name = stored === "dark" ? "light" : "dark";
        else if (!name) name = window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
        document.documentElement.dataset.theme = name;
        return [name, name === "dark" ? "Light" : "Dark"];
      },
  });

  // A click anywhere on a row of bubbles acts like its button.
  document.addEventListener("click", function (event) {
    const row = event.target.closest && event.target.closest("tr.bubble-row");
    if (!row || event.target.closest("button, a")) return;
    const button = row.querySelector("button");
    if (button) button.click();
  });

  function move(plot, key) {
    const range = plot.layout.xaxis.range.map(Number);
    const width = range[1] - range[0];
    const moves = {
      ArrowLeft: [range[0] - width / 4, range[1] - width / 4],
      ArrowRight: [range[0] + width / 4, range[1] + width / 4],
      "+": [range[0] + width / 4, range[1] - width / 4],
      "=": [range[0] + width / 4, range[1] - width / 4],
      "-": [range[0] - width / 2, range[1] + width / 2],
    };
    if (!moves[key]) return false;
    const low = plot.layout.xaxis.minallowed, high = plot.layout.xaxis.maxallowed;
    const start = Math.floor(1e6 * Math.max(moves[key][0], low));
    const end = Math.ceil(1e6 * Math.min(moves[key][1], high));
    // Straight to the server: letting Plotly zoom what it has would draw everything twice.
    if (start < end) window.dash_clientside.set_props("window", { data: { start: start, end: end } });
    return true;
  }

  document.addEventListener("click", function (event) {
    const button = event.target.closest && event.target.closest("button[data-key]");
    if (button && graph()) move(graph(), button.dataset.key);
  });

  document.addEventListener("keydown", function (event) {
    const plot = graph();
    if (!plot || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest && event.target.closest("input, textarea, select, [role=combobox], [role=listbox]")) return;
    if (event.key === "0") {
      const button = document.getElementById("whole-step");
      if (button) button.click();
      event.preventDefault();
    } else if (move(plot, event.key)) {
      event.preventDefault();
    }
  });
})();
