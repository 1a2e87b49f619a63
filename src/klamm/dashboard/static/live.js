// Keeps a page live: the server says which version of the cluster is current, and this fetches the same page again and
// replaces its live parts. Forms and everything else that a visitor may be working on are not live parts.
"use strict";

(() => {
  const page = document.querySelector("[data-live-page]");
  if (!page) return;
  const REFRESH_MS = 800;
  let shown = page.dataset.livePage;
  let wanted = shown;
  let busy = false;
  let age = Number(document.getElementById("age")?.dataset.age ?? 0);
  let heardAt = performance.now();

  function showAge() {
    const element = document.getElementById("age");
    if (element) element.textContent = (age + (performance.now() - heardAt) / 1000).toFixed(1);
  }

  function replaceLiveParts(fresh) {
    for (const part of document.querySelectorAll("[data-live]")) {
      const newer = fresh.getElementById(part.id);
      if (!newer || newer.innerHTML === part.innerHTML) continue;
      const focused = part.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
      part.className = newer.className;
      part.replaceChildren(...newer.childNodes);
      if (focused) {
        for (const link of part.querySelectorAll("a")) {
          if (link.getAttribute("href") === focused) { link.focus(); break; }
        }
      }
    }
  }

  async function refresh() {
    if (busy || wanted === shown || document.hidden) return;
    busy = true;
    const version = wanted;
    try {
      const answer = await fetch(location.href, { headers: { Accept: "text/html", "X-Klamm-Live": "1" } });
      if (answer.redirected && new URL(answer.url).pathname === "/login") { location.reload(); return; }
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (document.querySelector("[data-waiting]") && !fresh.querySelector("[data-waiting]")) { location.reload(); return; }
      replaceLiveParts(fresh);
      shown = version;
      showAge();
    } catch { /* the stream says whether the connection is lost */ }
    setTimeout(() => { busy = false; refresh(); }, REFRESH_MS);
  }

  document.querySelector("header nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
  const lost = document.getElementById("lost");
  const stream = new EventSource("/live");
  stream.addEventListener("state", (event) => {
    const state = JSON.parse(event.data);
    lost.hidden = true;
    age = state.age;
    heardAt = performance.now();
    wanted = state.key;
    showAge();
    refresh();
  });
  stream.onerror = () => { lost.hidden = false; };
  document.addEventListener("visibilitychange", refresh);
  setInterval(showAge, 500);
  addEventListener("pagehide", () => stream.close());

  addEventListener("keydown", (event) => {
    const typing = event.target.closest("input, select, textarea");
    if (event.key === "/" && !typing) {
      const search = document.querySelector("[data-search]");
      if (search) { event.preventDefault(); search.focus(); search.select(); }
    }
  });
})();
