// What the theme leaves out: a keyboard reaches all that scrolls, and each landmark has a name.
function mend() {
  document.querySelectorAll(".md-search").forEach((e) => e.setAttribute("aria-label", "Search"));
  document.querySelectorAll(".md-code__nav").forEach((e, i) => e.setAttribute("aria-label", `Code ${i + 1}`));
  document.querySelectorAll(".md-typeset__scrollwrap, .md-typeset p:has(> img)").forEach((e) => {
    if (e.scrollWidth > e.clientWidth) e.tabIndex = 0;
    else e.removeAttribute("tabindex");
  });
}
new MutationObserver(mend).observe(document.body, { childList: true, subtree: true });
addEventListener("load", mend);
addEventListener("resize", mend);
