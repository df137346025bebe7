// Rebuilding a part of the page without losing the keyboard's place: whatever replaces or hides elements does it here.

const REACHABLE = "a[href], button, input, select, textarea, canvas, summary, [tabindex]";
const TYPED = ["text", "search", "number"];

// Replaces what is in an element. What had the focus has it afterwards, or what took its place.
export function refill(element, ...children) {
  keepFocus(element, () => element.replaceChildren(...children));
}

// Runs what rebuilds or hides parts of an element. If that takes away what has the focus, the focus goes to the part of
// the same name (`data-key`, label or text), else to the one at the same place among its kind, else to what is next in
// the card.
export function keepFocus(element, rebuild) {
  const focused = document.activeElement;
  if (focused === element || !element.contains(focused)) {
    rebuild();
    return;
  }
  const [kind, name] = [focused.tagName, nameOf(focused)];
  const at = reachableIn(element, kind).indexOf(focused);
  rebuild();
  if (document.activeElement !== focused && document.activeElement !== document.body) return; // it went elsewhere by itself
  if (isReachable(focused)) {
    focused.focus({ preventScroll: true });
    return;
  }
  const alike = reachableIn(element, kind);
  const named = alike.filter((each) => nameOf(each) === name);
  const next = named.includes(alike[at]) ? alike[at] : (named[0] ?? alike[Math.min(Math.max(at, 0), alike.length - 1)]);
  if (next && named.includes(next) && TYPED.includes(next.type)) takeTyped(focused, next);
  (next ?? nextTo(element)).focus({ preventScroll: true });
}

function isReachable(element) {
  return element.isConnected && element.tabIndex >= 0 && !element.disabled && element.checkVisibility({ visibilityProperty: true });
}

function reachableIn(element, kind = null) {
  return [...element.querySelectorAll(REACHABLE)].filter((each) => (kind === null || each.tagName === kind) && isReachable(each));
}

function nameOf(element) {
  return element.dataset.key ?? element.getAttribute("aria-label") ?? element.textContent;
}

// What is being typed stays, with its caret.
function takeTyped(from, to) {
  to.value = from.value;
  if (to.type !== "number") to.setSelectionRange(from.selectionStart, from.selectionEnd);
}

// What follows an element in its card, else what is before it, else the card itself.
function nextTo(element) {
  const card = element.closest("section, main") ?? document.getElementById("view");
  const others = reachableIn(card).filter((each) => !element.contains(each));
  const follows = (each) => element.compareDocumentPosition(each) & Node.DOCUMENT_POSITION_FOLLOWING;
  const next = others.find(follows) ?? others.at(-1);
  if (!next) card.tabIndex = -1;
  return next ?? card;
}
