// Sorts a table by a click on a heading, and hides and shows a method's lines. Without it the page
// is complete.
"use strict";
const unit = {k: 1e3, M: 1e6, G: 1e9, T: 1e12, P: 1e15};
const number = text => {
  const found = text.replace("−", "-").match(/([-+]?\d[\d,]*\.?\d*)(?: ?([kMGTP])B?\b)?/);
  return found ? Number(found[1].replaceAll(",", "")) * (unit[found[2]] || 1) : -Infinity;
};
for (const table of document.querySelectorAll("table")) {
  const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
  if (body.rows.length < 3) continue;
  heads.forEach((head, column) => {
    const button = document.createElement("button"), numeric = head.classList.contains("n");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.onclick = () => {
      const down = head.ariaSort ? head.ariaSort === "ascending" : numeric; // numbers: largest first
      heads.forEach(other => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const of = row => row.cells[column].textContent;
      const order = numeric
        ? (a, b) => (number(of(a)) < number(of(b)) ? -1 : number(of(a)) > number(of(b)) ? 1 : 0)
        : (a, b) => of(a).localeCompare(of(b));
      body.append(...[...body.rows].sort((a, b) => (down ? -1 : 1) * order(a, b)));
    };
  });
}
for (const figure of document.querySelectorAll("figure")) {
  const lines = [...figure.querySelectorAll("[data-of]")];
  const names = new Set(lines.map(line => line.dataset.of)), bar = document.createElement("div");
  if (names.size < 2) continue;
  bar.className = "lines";
  for (const name of names) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = name;
    button.setAttribute("aria-pressed", "true");
    button.onclick = () => {
      const shown = button.getAttribute("aria-pressed") === "false";
      button.setAttribute("aria-pressed", String(shown));
      for (const line of lines)
        if (line.dataset.of === name) line.style.display = shown ? "" : "none";
    };
    bar.append(button);
  }
  figure.prepend(bar);
}
