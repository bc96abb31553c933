/* "Save": the page as the server draws it for these choices, as one HTML file. */
(function () {
  "use strict";

  function valueOf(id) {
    try {
      const layout = window.dash_component_api.getLayout(id.startsWith("{") ? JSON.parse(id) : id);
      return layout && layout.props ? layout.props.value : undefined;
    } catch (error) {
      return undefined; // an element that is no component
    }
  }

  /* What the user chose on the page: component id -> value. */
  function choices() {
    const found = {};
    document.querySelectorAll("#page [id]").forEach(function (element) {
      const value = valueOf(element.id);
      if (value !== undefined && value !== null) found[element.id] = value;
    });
    return found;
  }

  async function save(button) {
    const words = button.textContent;
    button.disabled = true;
    button.textContent = "Saving …";
    try {
      const answer = await fetch("/_export", {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify({
          path: location.pathname, search: location.search, values: choices(),
          theme: document.documentElement.dataset.theme,
        }),
      });
      if (!answer.ok) throw new Error(await answer.text());
      const link = document.createElement("a"), parts = location.pathname.split("/").filter(Boolean);
      link.download = "megascope-" + (parts.join("-") || "overview") + ".html";
      link.href = URL.createObjectURL(await answer.blob());
      link.click();
      setTimeout(function () { URL.revokeObjectURL(link.href); }, 60000);
    } catch (error) {
      window.dash_clientside.set_props("toast", { children: "The page could not be saved: " + error.message });
    } finally {
      button.disabled = false;
      button.textContent = words;
    }
  }

  document.addEventListener("click", function (event) {
    const button = event.target.closest && event.target.closest("#save-page");
    if (button && !button.disabled) save(button);
  });
})();
