// The choice between light, dark and the system theme.

export type Theme = "system" | "light" | "dark";

const STORED = "trainyard.theme"; // read by public/theme.js before the first paint

/** Return the chosen theme. */
export function chosenTheme(): Theme {
  const stored = localStorage.getItem(STORED);
  return stored === "light" || stored === "dark" ? stored : "system";
}

/** Apply a theme, and store the choice. */
export function chooseTheme(theme: Theme): void {
  if (theme === "system") {
    localStorage.removeItem(STORED);
    delete document.documentElement.dataset.theme;
  } else {
    localStorage.setItem(STORED, theme);
    document.documentElement.dataset.theme = theme;
  }
  window.dispatchEvent(new Event("themechange"));
}

/** Call `changed` when colours change, by choice or by the system, until the result is called. */
export function watchTheme(changed: () => void): () => void {
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  system.addEventListener("change", changed);
  window.addEventListener("themechange", changed);
  return () => {
    system.removeEventListener("change", changed);
    window.removeEventListener("themechange", changed);
  };
}
