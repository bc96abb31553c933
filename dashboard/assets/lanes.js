/* Draws the rectangles of a timeline on a canvas under Plotly's axes. Plotly makes an SVG element of each
   rectangle, which takes a tenth of a second for 3,000 of them, twice per zoom; a canvas takes milliseconds.
   It reads the same traces that Plotly would: "bar" (marks), "heatmap" (shares of many cores), "text" (labels). */
(function () {
  "use strict";
  const TYPES = {
    f8: Float64Array, f4: Float32Array, i4: Int32Array, i2: Int16Array, i1: Int8Array, u1: Uint8Array,
  };
  const ENTITIES = { "&amp;": "&", "&lt;": "<", "&gt;": ">" };

  function numbers(value) {
    if (!value || value.bdata === undefined) return value || [];
    const raw = atob(value.bdata);
    const bytes = new Uint8Array(raw.length);
    for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
    return new TYPES[value.dtype](bytes.buffer);
  }

  function literal(text) {
    return String(text).replace(/&(amp|lt|gt);/g, (entity) => ENTITIES[entity]);
  }

  function at(value, i) {
    return Array.isArray(value) || ArrayBuffer.isView(value) ? value[i] : value;
  }

  /* What goes on the canvas, and what stays with Plotly. */
  function split(traces) {
    const mine = [], rest = [];
    for (const trace of traces) {
      const own = trace.type === "bar" || (trace.type === "heatmap" && trace.meta) || trace.mode === "text";
      (own ? mine : rest).push(trace);
    }
    // Without a trace of its own the plot of the lanes would not be drawn, and a stretch could not be selected.
    rest.push({ type: "scatter", mode: "markers", x: [null], y: [null], hoverinfo: "skip", showlegend: false });
    return [mine, rest];
  }

  function decode(trace) {
    if (trace.type === "bar") {
      const marker = trace.marker || {}, line = marker.line || {};
      return {
        kind: "bar", name: trace.name, base: numbers(trace.base), length: numbers(trace.x), top: numbers(trace.y),
        height: numbers(trace.width), hover: trace.hovertext || [], span: numbers(trace.customdata),
        colour: marker.color, pattern: marker.pattern, edge: numbers(line.width), edgeColour: line.color,
      };
    }
    if (trace.type === "heatmap") {
      const x = numbers(trace.x), y = numbers(trace.y);
      return {
        kind: "heat", name: trace.name, z: numbers(trace.z), x0: x[0], cell: (x[x.length - 1] - x[0]) / (x.length - 1),
        columns: x.length - 1, y: y, colour: trace.meta.colour, labels: trace.meta.labels,
      };
    }
    return {
      kind: "text", x: numbers(trace.x), y: numbers(trace.y), text: (trace.text || []).map(literal),
      colour: (trace.textfont || {}).color, size: (trace.textfont || {}).size || 11,
    };
  }

  function attach(place, plot) {
    const canvas = document.createElement("canvas");
    const tip = document.createElement("div");
    canvas.className = "lanes";
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", "Lanes of the step over time; the note below says what is shown");
    tip.className = "lane-tip";
    tip.setAttribute("role", "tooltip");
    tip.hidden = true;
    place.prepend(canvas);
    place.append(tip);
    let traces = [], layout = {}, frame = null, live = null;

    function geometry() {
      const full = plot._fullLayout;
      if (!full || !full.xaxis || !full.yaxis) return null;
      const x = full.xaxis, y = full.yaxis, shift = plot.getBoundingClientRect(), own = place.getBoundingClientRect();
      const range = (live || x.range).map(Number), rows = y.range.map(Number);
      return {
        left: x._offset + shift.left - own.left, width: x._length, top: y._offset + shift.top - own.top, height: y._length,
        from: range[0], scale: x._length / (range[1] - range[0]), first: rows[1], step: y._length / (rows[0] - rows[1]),
        bottom: full.height - full.margin.b, ticks: (x._vals || []).map((tick) => tick.x),
      };
    }

    function hatch(context, pattern, colour) {
      const size = pattern.size || 6, tile = document.createElement("canvas");
      tile.width = tile.height = size;
      const pen = tile.getContext("2d");
      pen.strokeStyle = pattern.fgcolor || colour;
      pen.lineWidth = 1;
      pen.beginPath();
      for (const shift of [-size, 0, size]) { pen.moveTo(shift - 1, size + 1); pen.lineTo(shift + size + 1, -1); }
      pen.stroke();
      return context.createPattern(tile, "repeat");
    }

    function drawBars(context, trace, g) {
      const pattern = trace.pattern ? hatch(context, trace.pattern, trace.edgeColour) : null;
      let colour = null;
      for (let i = 0; i < trace.base.length; i++) {
        let low = (trace.base[i] - g.from) * g.scale, high = low + trace.length[i] * g.scale;
        if (high < 0 || low > g.width) continue;
        const open = low < -2 ? 0 : 1;
        low = Math.max(low, -2);
        high = Math.min(Math.max(high, low + 1), g.width + 2);
        const top = g.top + (trace.top[i] - g.first) * g.step, height = Math.max(1, trace.height[i] * g.step);
        const next = pattern || at(trace.colour, i);
        if (next !== colour) context.fillStyle = colour = next;
        context.fillRect(g.left + low, top, high - low, height);
        const edge = at(trace.edge, i) || 0;
        if (edge && trace.edgeColour && high - low > 3 * edge) {
          context.strokeStyle = trace.edgeColour;
          context.lineWidth = edge;
          if (pattern) context.strokeRect(g.left + low + 0.5, top + 0.5, high - low - open, Math.max(1, height - 1));
          else context.strokeRect(g.left + low, top, high - low, height);
        }
      }
    }

    function drawHeat(context, trace, g) {
      const width = trace.columns, cell = trace.cell;
      context.fillStyle = trace.colour;
      for (let row = 0; row + 1 < trace.y.length; row++) {
        if (!trace.labels[row]) continue;
        const top = g.top + (trace.y[row] - g.first) * g.step, height = Math.max(1, (trace.y[row + 1] - trace.y[row]) * g.step);
        for (let i = 0; i < width; i++) {
          const share = trace.z[row * width + i];
          if (!share) continue;
          let run = i + 1;
          while (run < width && trace.z[row * width + run] === share) run++;
          const low = (trace.x0 + i * cell - g.from) * g.scale, high = (trace.x0 + run * cell - g.from) * g.scale;
          i = run - 1;
          if (high < 0 || low > g.width) continue;
          context.globalAlpha = 0.12 + (0.88 * share) / 100;
          context.fillRect(g.left + low, top, high - low, height);
        }
      }
      context.globalAlpha = 1;
    }

    function drawText(context, trace, g) {
      const family = ((layout.font || {}).family) || "sans-serif";
      context.font = trace.size + "px " + family;
      context.textAlign = "center";
      context.textBaseline = "middle";
      for (let i = 0; i < trace.text.length; i++) {
        const x = (trace.x[i] - g.from) * g.scale;
        if (x < 0 || x > g.width) continue;
        context.fillStyle = at(trace.colour, i);
        context.fillText(trace.text[i], g.left + x, g.top + (trace.y[i] - g.first) * g.step + 0.5);
      }
    }

    function draw() {
      frame = null;
      const g = geometry(), box = place.getBoundingClientRect(), ratio = window.devicePixelRatio || 1;
      if (!g || !box.width) return;
      const wide = Math.round(box.width * ratio), high = Math.round(box.height * ratio);
      if (canvas.width !== wide || canvas.height !== high) { canvas.width = wide; canvas.height = high; }
      const context = canvas.getContext("2d");
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
      context.clearRect(0, 0, box.width, box.height);
      context.strokeStyle = (layout.xaxis || {}).gridcolor || "#ddd";
      context.lineWidth = 1;
      context.beginPath();
      for (const tick of g.ticks) {
        const x = Math.round(g.left + (tick - g.from) * g.scale) + 0.5;
        if (x < g.left || x > g.left + g.width) continue;
        context.moveTo(x, g.top);
        context.lineTo(x, g.bottom);
      }
      context.stroke();
      context.save();
      context.beginPath();
      context.rect(g.left, g.top, g.width, g.height);
      context.clip();
      for (const trace of traces) {
        ({ bar: drawBars, heat: drawHeat, text: drawText })[trace.kind](context, trace, g);
      }
      context.restore();
    }

    function soon() {
      if (frame === null) frame = requestAnimationFrame(draw);
    }

    /* The mark under a point of the page: {text, span}, or null. */
    function hit(clientX, clientY) {
      const g = geometry(), box = place.getBoundingClientRect();
      if (!g) return null;
      const x = clientX - box.left - g.left, y = clientY - box.top - g.top;
      if (x < 0 || y < 0 || x > g.width || y > g.height) return null;
      const row = g.first + y / g.step;
      for (let k = traces.length - 1; k >= 0; k--) {
        const trace = traces[k];
        if (trace.kind === "heat") {
          const found = cellAt(trace, g.from + x / g.scale, row);
          if (found) return found;
        }
        if (trace.kind !== "bar") continue;
        for (let i = trace.base.length - 1; i >= 0; i--) {
          if (row < trace.top[i] || row > trace.top[i] + trace.height[i]) continue;
          const low = (trace.base[i] - g.from) * g.scale, high = low + Math.max(1, trace.length[i] * g.scale);
          if (x >= low - 1 && x <= high + 1) return { text: trace.hover[i] || "", span: trace.span.length ? trace.span[i] : null };
        }
      }
      return null;
    }

    function cellAt(trace, time, row) {
      const i = Math.floor((time - trace.x0) / trace.cell);
      let number = 0;
      while (number + 1 < trace.y.length && !(row >= trace.y[number] && row < trace.y[number + 1])) number++;
      const share = i < 0 || i >= trace.columns || !trace.labels[number] ? 0 : trace.z[number * trace.columns + i];
      if (!share) return null;
      const from = trace.x0 + i * trace.cell, digits = Math.max(0, Math.min(6, Math.ceil(1 - Math.log10(trace.cell))));
      const text = "<b>" + trace.labels[number] + "</b> · " + trace.name + "<br>" + share + " % of the time from " +
        from.toFixed(digits) + " to " + (from + trace.cell).toFixed(digits) + " µs<br>zoom in for single spans";
      return { text: text, span: null };
    }

    function say(found, event) {
      tip.hidden = !found || !found.text;
      if (tip.hidden) return;
      tip.replaceChildren();
      for (const line of found.text.split("<br>")) {
        const part = document.createElement("div");
        line.split(/<\/?b>/).forEach(function (piece, i) {
          const word = document.createElement(i % 2 ? "b" : "span");
          word.textContent = literal(piece);
          part.append(word);
        });
        tip.append(part);
      }
      const box = place.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
      tip.style.left = Math.max(0, Math.min(x + 14, box.width - tip.offsetWidth - 4)) + "px";
      tip.style.top = Math.max(0, y + 18 + tip.offsetHeight > box.height ? y - tip.offsetHeight - 12 : y + 18) + "px";
    }

    let pressed = null;
    place.addEventListener("mousemove", function (event) { say(event.buttons ? null : hit(event.clientX, event.clientY), event); });
    place.addEventListener("mouseleave", function () { tip.hidden = true; });
    place.addEventListener("mousedown", function (event) { pressed = [event.clientX, event.clientY]; tip.hidden = true; }, true);
    window.addEventListener("mouseup", function released(event) {
      if (!place.isConnected) {  // another page is shown: what was drawn here is not kept for it
        window.removeEventListener("mouseup", released, true);
        return;
      }
      const still = pressed && Math.hypot(event.clientX - pressed[0], event.clientY - pressed[1]) < 4;
      pressed = null;
      const found = still && hit(event.clientX, event.clientY);
      if (found) window.dash_clientside.set_props("clicked", { data: { span: found.span, at: Date.now() } });
    }, true);

    return {
      set: function (own, given) { traces = own.map(decode); layout = given; live = null; tip.hidden = true; },
      draw: draw,
      soon: function (range) { live = range || null; soon(); },
      hit: hit,
      /* Centres on the page, and what hovering there says, of the marks of a trace that are wholly in sight. */
      find: function (name) {
        const g = geometry(), box = place.getBoundingClientRect(), out = [];
        for (const trace of traces) {
          if (trace.kind !== "bar" || (name && trace.name !== name)) continue;
          for (let i = 0; i < trace.base.length; i++) {
            const low = (trace.base[i] - g.from) * g.scale, wide = trace.length[i] * g.scale;
            if (low < 0 || low + wide > g.width || wide < 3) continue;
            out.push([box.left + g.left + low + wide / 2, box.top + g.top + (trace.top[i] + trace.height[i] / 2 - g.first) * g.step, trace.hover[i]]);
          }
        }
        return out;
      },
      count: function () { return traces.reduce((n, t) => n + (t.kind === "bar" ? t.base.length : 0), 0); },
      hovers: function () { return traces.flatMap((t) => (t.kind === "bar" ? t.hover : [])); },
      names: function () { return traces.filter((t) => t.name).map((t) => t.name); },
    };
  }

  window.megascopeLanes = { attach: attach, split: split };
})();
