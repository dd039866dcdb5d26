// Buttons, and links that look like buttons.
import type { ComponentProps } from "react";
import { Link, type LinkProps } from "react-router";
import { cx } from "./cx";
import "./Button.css";

export type ButtonLook = "plain" | "primary" | "danger" | "quiet";

interface Look {
  look?: ButtonLook;
  small?: boolean;
}

interface ButtonProps extends ComponentProps<"button">, Look {
  /** A request is in flight: the button is disabled and keeps its width. */
  busy?: boolean;
}

export function Button({ look = "plain", small, busy, className, disabled, ...rest }: ButtonProps) {
  return (
    <button
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
