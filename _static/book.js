// What is wrong or unclear in the HTML of the theme and of Sphinx, most of it for readers who
// listen to the page; each repair with its reason.
document.addEventListener("DOMContentLoaded", () => {
  const each = (selector, repair) => document.querySelectorAll(selector).forEach(repair);

  // "Click to show" is on the page; a hidden label with other words hides it from voice control.
  each("details > summary[aria-label], button.search-button-field[aria-label]", (element) =>
    element.removeAttribute("aria-label"));

  // A folded solution says which one it is, as it does in Colab.
  each("details.hide", (cell) => {
    const title = cell.querySelector("pre")?.textContent.match(/^# @title (.+)/)?.[1];
    if (title) cell.querySelectorAll("summary p").forEach((label) => { label.textContent = title; });
  });

  // The switch holds three icons and shows one; their titles would be read beside its own label.
  each(".theme-switch-button :is(i, svg)", (icon) => {
    icon.removeAttribute("title");
    icon.querySelector("title")?.remove();
    icon.setAttribute("aria-hidden", "true");
  });

  // The bibliography uses roles that no longer exist, inside a list without items.
  each('.citation-list[role="list"], [role="doc-biblioentry"]', (element) =>
    element.removeAttribute("role"));

  // Sphinx writes the lines of a long signature as a list of definitions without terms.
  each("dt.sig dl", (list) => {
    const lines = document.createElement("div");
    lines.className = "sig-lines";
    for (const item of [...list.children]) {
      const line = document.createElement("div");
      line.append(...item.childNodes);
      lines.append(line);
    }
    list.replaceWith(lines);
  });

  // The list of sources puts a list beside the item that it belongs to.
  each("ul > ul", (list) => list.previousElementSibling?.append(list));

  // A corner of a table that is empty heads nothing.
  each("table thead th:empty", (cell) => cell.replaceWith(document.createElement("td")));

  // The title in the sidebar lies outside every landmark.
  each(".sidebar-primary-items__start > .sidebar-primary-item:first-child", (item) => {
    item.setAttribute("role", "region");
    item.setAttribute("aria-label", "Book title");
  });

  // A Chinese term among English ones must be read as Chinese.
  each("dl.glossary dt", (term) => {
    if (/\p{Script=Han}/u.test(term.textContent)) term.lang = "zh-Hans";
  });
});
