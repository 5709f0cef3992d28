"use strict";
// Refreshes a page in place, follows its log, and shows times in the reader's zone. Without it, pages work too.
(() => {
  const PAUSE = 3000;
  const LONGEST = 60000;
  const NEAR = 60;
  const shown = new Intl.DateTimeFormat("sv-SE", { dateStyle: "short", timeStyle: "short" });
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  let failures = 0;

  function localize(root) {
    for (const time of root.querySelectorAll("time")) {
      const moment = new Date(time.dateTime);
      if (Number.isNaN(moment.getTime())) continue;
      time.title = `${time.dateTime.replace("T", " ").replace("Z", "")} UTC`;
      time.textContent = shown.format(moment);
    }
    for (const place of root.querySelectorAll(".zone")) place.textContent = zone;
  }

  function tell(text) {
    const place = document.getElementById("connection");
    if (place.textContent !== text) place.textContent = text;
  }

  // A reader who types or marks a text must not lose it.
  function isBusy() {
    const tag = document.activeElement ? document.activeElement.tagName : "";
    return document.hidden || tag === "INPUT" || !window.getSelection().isCollapsed;
  }

  function places(root) {
    return [...root.querySelectorAll("a[href], summary, .scroll")];
  }

  function replace(next) {
    const main = document.getElementById("main");
    const focused = places(main).indexOf(document.activeElement);
    const open = [...main.querySelectorAll("details")].map((each) => each.open);
    const across = [...main.querySelectorAll(".scroll")].map((each) => each.scrollLeft);
    const page = document.documentElement;
    const atEnd = window.innerHeight + window.scrollY >= page.scrollHeight - NEAR;
    localize(next);
    main.replaceWith(next);
    next.querySelectorAll("details").forEach((each, number) => { each.open = Boolean(open[number]); });
    next.querySelectorAll(".scroll").forEach((each, number) => { each.scrollLeft = across[number] || 0; });
    if (focused >= 0 && places(next)[focused]) places(next)[focused].focus({ preventScroll: true });
    if (atEnd && document.getElementById("lines")) window.scrollTo(0, page.scrollHeight);
  }

  async function refresh() {
    const answer = await fetch(window.location.href, { cache: "no-store", redirect: "error" });
    if (answer.status === 404) {
      tell("This page is gone, or your access has ended: run `reconciler open` for a new link.");
      return false;
    }
    if (!answer.ok) {
      tell(`This page can't be read now (${answer.status}).`);
      return true;
    }
    const made = new DOMParser().parseFromString(await answer.text(), "text/html");
    const next = made.getElementById("main");
    if (next && !isBusy()) {
      replace(document.adoptNode(next));
      const foot = document.adoptNode(made.querySelector("footer"));
      localize(foot);
      document.querySelector("footer").replaceWith(foot);
    }
    tell("");
    return true;
  }

  async function go() {
    let on = true;
    if (!isBusy()) {
      try {
        on = await refresh();
        failures = 0;
      } catch {
        failures += 1;
        tell("The server of these pages doesn't answer.");
      }
    }
    if (on) window.setTimeout(go, Math.min(LONGEST, PAUSE * 2 ** failures));
  }

  localize(document);
  window.setTimeout(go, PAUSE);
})();
