"use strict";
// The page is complete without this script, which adds a theme button, sorting, folding of long tables, and arrow keys in heat maps.
(() => {
  const root = document.documentElement, KEY = "transferrisk-theme";
  const dark = matchMedia("(prefers-color-scheme: dark)");
  // Storage may be refused, for files and in private windows; the choice then lasts as long as the page.
  const remembered = () => { try { return localStorage.getItem(KEY); } catch { return null; } };
  const remember = (theme) => { try { localStorage.setItem(KEY, theme); } catch { /* see above */ } };
  const stored = remembered();
  if (stored === "dark" || stored === "light") root.dataset.theme = stored;
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : dark.matches);

  function themeButton() {
    const button = document.getElementById("theme");
    const label = () => { button.textContent = isDark() ? "Light page" : "Dark page"; };
    button.addEventListener("click", () => {
      root.dataset.theme = isDark() ? "light" : "dark";
      remember(root.dataset.theme);
      label();
    });
    dark.addEventListener("change", label);
    label();
    button.hidden = false;
  }

  // Numbers come before text and are compared as numbers, text as people sort it; missing values come last in either direction.
  function compare(a, b, sign) {
    const missing = a.hasAttribute("data-missing") - b.hasAttribute("data-missing");
    if (missing) return missing;
    const text = !a.hasAttribute("data-value") - !b.hasAttribute("data-value");
    if (text) return sign * text;
    if (!a.hasAttribute("data-value")) return sign * a.textContent.localeCompare(b.textContent, undefined, { numeric: true });
    const [x, y] = [Number(a.dataset.value), Number(b.dataset.value)];
    return x === y ? 0 : x < y ? -sign : sign;
  }

  function sortable(table) {
    const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
    if (body.rows.length < 2) return;
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
        body.append(...[...body.rows].sort((a, b) => compare(a.cells[column], b.cells[column], sign)));
        fold(table);
      });
    });
  }

  // Long tables show their first and last rows in the current order until a reader asks for all.
  function fold(table) {
    const rows = [...table.tBodies[0].rows], shown = Number(table.dataset.fold);
    rows.forEach((row, place) => {
      row.classList.toggle("folded", "fold" in table.dataset && place >= shown && place < rows.length - shown);
    });
  }
  function foldable(table) {
    const count = table.tBodies[0].rows.length, button = document.createElement("button");
    button.type = "button";
    button.className = "unfold";
    button.textContent = `Show all ${count} rows, not only the first and last ${table.dataset.fold}`;
    button.addEventListener("click", () => {
      delete table.dataset.fold;
      fold(table);
      button.remove();
    });
    table.closest(".scroll").before(button);
    fold(table);
  }

  // A heat map is one tab stop; the arrow keys move inside it.
  const STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
  function walkable(table) {
    const cells = [...table.querySelectorAll("td[tabindex]")];
    cells.slice(1).forEach((cell) => { cell.tabIndex = -1; });
    table.addEventListener("focusin", (event) => {
      if (cells.includes(event.target)) cells.forEach((cell) => { cell.tabIndex = cell === event.target ? 0 : -1; });
    });
    table.addEventListener("keydown", (event) => {
      const step = STEPS[event.key], cell = event.target.closest("td");
      if (!step || !cell) return;
      event.preventDefault();
      const rows = [...table.tBodies[0].rows];
      let row = rows.indexOf(cell.parentNode), column = cell.cellIndex, next;
      do {
        row += step[0]; column += step[1];
        next = rows[row] && rows[row].cells[column];
      } while (next && next.tagName === "TD" && !next.hasAttribute("tabindex"));
      if (next && next.tagName === "TD") next.focus();
    });
  }

  // Only regions that can be scrolled are tab stops and have the line that says so.
  function scrolling() {
    document.querySelectorAll(".scroll").forEach((region) => {
      const wide = region.scrollWidth > region.clientWidth + 1;
      region.toggleAttribute("tabindex", false);
      if (wide) region.tabIndex = 0;
      region.nextElementSibling.style.display = wide ? "block" : "none";
    });
  }

  document.addEventListener("DOMContentLoaded", () => {
    themeButton();
    document.querySelectorAll("table.sortable").forEach(sortable);
    document.querySelectorAll("table[data-fold]").forEach(foldable);
    document.querySelectorAll("table.heat").forEach(walkable);
    scrolling();
    addEventListener("resize", scrolling);
  });
})();
