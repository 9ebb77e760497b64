// The live page: ask for the state every few seconds, and for figures and samples when their versions change.
"use strict";
const EVERY_MS = 3000;

async function text(url) {
  const answer = await fetch(url, { cache: "no-store", credentials: "same-origin" });
  if (!answer.ok) throw new Error(answer.status);
  return answer.text();
}

// The fragments are this server's own, everything in them is escaped, and the page's policy forbids inline scripts.
function put(section, html) {
  const fresh = document.createElement("div");
  fresh.innerHTML = html;
  for (const image of fresh.querySelectorAll("figure img")) {
    // Keep the old height until the new picture is there, so that the page does not jump.
    const old = document.querySelector("#" + CSS.escape(image.closest("figure").id) + " img");
    if (old && old.offsetHeight) {
      image.style.minHeight = old.offsetHeight + "px";
      image.addEventListener("load", () => { image.style.minHeight = ""; });
    }
  }
  for (const details of fresh.querySelectorAll("details[id]")) {
    const old = document.getElementById(details.id);
    if (old) details.open = old.open;
  }
  section.replaceChildren(...fresh.childNodes);
}

async function tick() {
  const lost = document.getElementById("lost");
  try {
    const state = JSON.parse(await text("state.json"));
    put(document.getElementById("now"), state.now);
    document.title = state.title;
    for (const part of ["figures", "samples"]) {
      const section = document.getElementById(part);
      if (section.dataset.version !== state[part]) {
        put(section, await text(part));
        section.dataset.version = state[part];
      }
    }
    lost.hidden = true;
  } catch (error) {
    lost.hidden = false;
  }
  setTimeout(tick, EVERY_MS);
}

setTimeout(tick, EVERY_MS);
