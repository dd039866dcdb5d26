// Buttons, and links that look like buttons.
import { type ComponentProps, useLayoutEffect, useRef } from "react";
import { Link, type LinkProps } from "react-router";
import { cx } from "./cx";
import "./Button.css";

export type ButtonLook = "plain" | "primary" | "danger" | "quiet";

interface Look {
  look?: ButtonLook;
  small?: boolean;
}

interface ButtonProps extends Omit<ComponentProps<"button">, "ref">, Look {
  /** A request is in flight: the button is disabled and keeps its width. */
  busy?: boolean;
}

/** Make the next Tab go to the first control of the page, below the navigation. */
export function focusPage(): void {
  document.getElementById("main")?.focus({ preventScroll: true });
}

export function Button({ look = "plain", small, busy, className, disabled, ...rest }: ButtonProps) {
  const button = useRef<HTMLButtonElement>(null);
  // A focused button that is removed, such as that of a verb, passes the focus to the start of the page.
  useLayoutEffect(() => {
    const shown = button.current;
    return () => {
      if (document.activeElement === shown) focusPage();
    };
  }, []);
  return (
    <button
      ref={button}
      type="button"
      {...rest}
      className={cx("button", `button-${look}`, small && "button-small", className)}
      disabled={disabled || busy}
      aria-busy={busy || undefined}
    />
  );
}

export function ButtonLink({ look = "plain", small, className, ...rest }: LinkProps & Look) {
  return (
    <Link
      {...rest}
      className={cx("button", `button-${look}`, small && "button-small", className)}
    />
  );
}
