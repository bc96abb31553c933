/* The timeline figure. It talks to the server and to Plotly directly: on the way through Dash's own graph
   component a zoom would take twice as long. What other parts of the page need goes through stores. */
(function () {
  "use strict";
  const PS = 1e6; // picoseconds per microsecond, the unit of the time axis
  const CONFIG = { displayModeBar: false, scrollZoom: true, responsive: true, doubleClick: false, showTips: false };
  const PLOTLY = "/_dash-component-suites/plotly/package_data/plotly.min.js";
  let pending = null;
  let plotly = null;

  function load() {
    if (window.Plotly) return Promise.resolve(window.Plotly);
    if (!plotly) {
      plotly = new Promise(function (resolve, reject) {
        const script = document.createElement("script");
        script.src = PLOTLY;
        script.onload = function () { resolve(window.Plotly); };
        script.onerror = function () { plotly = null; reject(new Error("plotly.js could not be loaded")); };
        document.head.appendChild(script);
      });
    }
    return plotly;
  }
  load().catch(function () {});

  function range(change) {
    let found = change["xaxis.range"];
    if (!found && "xaxis.range[0]" in change) found = [change["xaxis.range[0]"], change["xaxis.range[1]"]];
    if (!found) return null;
    const low = Math.min(found[0], found[1]), high = Math.max(found[0], found[1]);
    const start = Math.floor(low * PS);
    return { start: start, end: Math.max(Math.ceil(high * PS), start + 1) };
  }

  function listen(plot, lanes) {
    const tell = window.dash_clientside.set_props;
    plot.on("plotly_relayout", function (change) {
      const found = range(change);
      lanes.soon();
      if (found) tell("window", { data: found });
    });
    plot.on("plotly_doubleclick", function () { tell("window", { data: null }); return false; });
    plot.on("plotly_afterplot", function () { lanes.soon(); });
    plot.on("plotly_relayouting", function (change) {
      const found = range(change);
      lanes.soon(found && [found.start / PS, found.end / PS]);
    });
    plot.on("plotly_selected", function (event) {
      if (event && event.range) tell("stretch", { data: event.range.x.map(Number) });
    });
  }

  /* The canvas lies under the axes: they must let it through, and it draws the grid below the marks. */
  function behind(layout) {
    const clear = "rgba(0,0,0,0)";
    return Object.assign({}, layout, {
      paper_bgcolor: clear, plot_bgcolor: clear, xaxis: Object.assign({}, layout.xaxis, { showgrid: false }),
    });
  }

  async function draw(body) {
    const place = document.getElementById("timeline");
    if (!place) return "";
    if (pending) pending.abort();
    const mine = (pending = new AbortController());
    const slow = setTimeout(function () { place.classList.add("busy"); }, 350);
    try {
      const [library, answer] = await Promise.all([
        load(),
        fetch("/_timeline", {
          method: "POST",
          headers: { "Content-Type": "application/json" },
          body: JSON.stringify(body),
          signal: mine.signal,
        }),
      ]);
      if (!answer.ok) throw new Error("the server answered " + answer.status);
      const found = await answer.json();
      if (found.pending && pending === mine) {
        // The server is simulating something for this; the old picture stays, dimmed, until it is there.
        place.classList.add("busy");
        window.dash_clientside.set_props("timeline-note", { children: found.pending });
        await new Promise(function (resolve) { setTimeout(resolve, 300); });
        return pending === mine ? draw(body) : window.dash_clientside.no_update;
      }
      if (pending !== mine) return window.dash_clientside.no_update;
      let plot = place.querySelector(".js-plotly-plot");
      const fresh = !plot;
      if (fresh) {
        plot = document.createElement("div");
        plot.style.height = "100%";
        place.replaceChildren(plot);
        plot.lanes = window.megascopeLanes.attach(place, plot);
        // The space changes with what stands below, not only with the window.
        new ResizeObserver(function () {
          if (plot.isConnected && plot._fullLayout) library.Plots.resize(plot);
        }).observe(place);
      }
      const [own, rest] = window.megascopeLanes.split(found.data);
      plot.lanes.set(own, found.layout);
      await library.react(plot, rest, behind(found.layout), CONFIG);
      plot.lanes.draw();
      if (fresh) listen(plot, plot.lanes);
      // Other parts of the page follow what is drawn, not what was asked for: that may take seconds to come.
      const drawn = body.core + "/" + body.account;
      if (plot.drawn !== drawn && !(fresh && body.account !== "both")) {
        window.dash_clientside.set_props("drawn-core", { data: body.core });
      }
      plot.drawn = drawn;
      return found.note;
    } catch (error) {
      if (error.name === "AbortError") return window.dash_clientside.no_update;
      return "The timeline could not be drawn: " + error.message + ". Is the dashboard still running?";
    } finally {
      clearTimeout(slow);
      if (pending === mine) {
        pending = null;
        place.classList.remove("busy");
      }
    }
  }

  window.dash_clientside = Object.assign({}, window.dash_clientside);
  window.dash_clientside.megascope = Object.assign({}, window.dash_clientside.megascope, {
    draw: function (view, core, theme, more, selected, measuring, kinds, account, align, path) {
      return draw({
        window: view || null, core: core, theme: theme, more: more || [], selected: selected,
        measuring: !!(measuring && measuring.length), kinds: kinds, account: account, align: align || "", path: path,
      });
    },
    core: function (search, options) {
      const wanted = Number(new URLSearchParams(search || "").get("core") || NaN);
      const known = (options || []).some(function (option) { return option.value === wanted; });
      return known ? wanted : window.dash_clientside.no_update;
    },
    kinds: function (core) {
      return core === -1 ? {} : { display: "none" };
    },
  });
})();
