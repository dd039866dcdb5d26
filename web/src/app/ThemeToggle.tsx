// Cycles through the themes: the system's own, light, dark.
import { useState } from "react";
import { chooseTheme, chosenTheme, type Theme } from "@/shared/theme/theme";
import { Button } from "@/shared/ui/Button";

const NEXT: Record<Theme, Theme> = { system: "light", light: "dark", dark: "system" };
const PATHS: Record<Theme, string> = {
  system: "M2 3h12v8H2zM6 14h4M8 11v3",
  light:
    "M8 5a3 3 0 1 0 0 6 3 3 0 0 0 0-6zM8 1v1.5M8 13.5V15M1 8h1.5M13.5 8H15M3 3l1 1M12 12l1 1M3 13l1-1M12 4l1-1",
  dark: "M13.5 9.5A6 6 0 0 1 6.5 2.5a6 6 0 1 0 7 7z",
};

export function ThemeToggle() {
  const [theme, setTheme] = useState(chosenTheme);
  const label = `Theme: ${theme}. Change to ${NEXT[theme]}.`;
  return (
    <Button
      look="quiet"
      small
      aria-label={label}
      title={label}
      onClick={() => {
        chooseTheme(NEXT[theme]);
        setTheme(NEXT[theme]);
      }}
    >
      <svg
        viewBox="0 0 16 16"
        width="16"
        height="16"
        fill="none"
        stroke="currentColor"
        strokeWidth="1.4"
        strokeLinecap="round"
        strokeLinejoin="round"
        aria-hidden="true"
      >
        <path d={PATHS[theme]} />
      </svg>
    </Button>
  );
}
