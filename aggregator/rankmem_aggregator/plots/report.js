"use strict";
// Sorts the tables, unfolds them, and draws the heat map of ranks over time.
function sortable(table) {
  table.querySelectorAll("thead button").forEach((button, column) => button.onclick = () => {
    const body = table.tBodies[0], rows = [...body.rows];
    const key = row => row.cells[column].dataset.value ?? row.cells[column].textContent;
    const number = rows.every(row => row.cells[column].dataset.value !== undefined);
    const down = button.parentElement.getAttribute("aria-sort") !== "descending";
    rows.sort((a, b) => (number ? key(a) - key(b) : key(a).localeCompare(key(b), "en", { numeric: true })) * (down ? -1 : 1));
    table.querySelectorAll("th").forEach(head => head.removeAttribute("aria-sort"));
    button.parentElement.setAttribute("aria-sort", down ? "descending" : "ascending");
    table.classList.add("all");
    body.replaceChildren(...rows);
  });
}
document.querySelectorAll("table.report").forEach(sortable);
document.querySelectorAll(".more-button").forEach(button => button.onclick = () => {
  document.getElementById(button.getAttribute("aria-controls")).classList.add("all");
  button.remove();
});

function drawHeat(root) {
  const { ranks, bins, peaks, from_ns: from, until_ns: until, least, most } = JSON.parse(root.querySelector(".heat-data").textContent);
  const canvas = root.querySelector(".heat"), tip = root.querySelector(".heat-tip"), pen = canvas.getContext("2d");
  const row = Math.max(2, Math.min(22, Math.floor(420 / ranks.length)));
  canvas.width = bins; canvas.height = ranks.length;
  canvas.style.height = `${row * ranks.length}px`;
  const share = bytes => most > least ? (bytes - least) / (most - least) : 1;
  ranks.forEach((_, y) => {
    for (let x = 0; x < bins; x++) {
      const bytes = peaks[y * bins + x];
      if (bytes < 0) continue;
      pen.fillStyle = `rgba(213, 94, 0, ${.08 + .92 * share(bytes)})`;
      pen.fillRect(x, y, 1, 1);
    }
  });
  const unit = bytes => {
    let power = 0;
    while (power < 5 && bytes >= 1024 ** (power + 1)) power++;
    return power ? `${(bytes / 1024 ** power).toFixed(2)} ${["B", "KiB", "MiB", "GiB", "TiB", "PiB"][power]}` : `${bytes} B`;
  };
  const said = tip.textContent;
  canvas.onpointermove = event => {
    const box = canvas.getBoundingClientRect();
    const x = Math.min(bins - 1, Math.max(0, Math.floor((event.clientX - box.left) / box.width * bins)));
    const y = Math.min(ranks.length - 1, Math.max(0, Math.floor((event.clientY - box.top) / box.height * ranks.length)));
    const bytes = peaks[y * bins + x], width = (until - from) / bins / 1e9;
    const begin = from / 1e9 + x * width;
    tip.textContent = `rank ${ranks[y]}, +${begin.toFixed(3)} s to +${(begin + width).toFixed(3)} s: `
      + (bytes < 0 ? "nothing known" : `at most ${unit(bytes)}`);
  };
  canvas.onpointerleave = () => { tip.textContent = said; };
}
document.querySelectorAll(".heat-frame").forEach(drawHeat);
