// Buttons, and links that look like buttons.
import { type ComponentProps, useLayoutEffect, useRef } from "react";
import { Link, type LinkProps } from "react-router";
import { barrierSentence } from "@/shared/api/barriers";
import { cx } from "./cx";
import { Popover } from "./Popover";
import "./Button.css";

export type ButtonLook = "plain" | "primary" | "danger" | "quiet";

interface Look {
  look?: ButtonLook;
  small?: boolean;
}

interface ButtonProps extends Omit<ComponentProps<"button">, "ref">, Look {
  /** A request is in flight: the button is disabled and keeps its width. */
  busy?: boolean;
  barrier?: Barrier;
}

/** Why the caller may not: the control is disabled, but can be focused, and shows the reason. */
type Barrier = string | null | undefined;

/** Make the next Tab go to the first control of the page, below the navigation. */
export function focusPage(): void {
  document.getElementById("main")?.focus({ preventScroll: true });
}

export function Button(props: ButtonProps) {
  const { look = "plain", small, busy, barrier, className, disabled, ...rest } = props;
  const button = useRef<HTMLButtonElement>(null);
  // A focused button that is removed, such as that of a verb, passes the focus to the start of the page.
  useLayoutEffect(() => {
    const shown = button.current;
    return () => {
      if (document.activeElement === shown) focusPage();
    };
  }, []);
  const classes = cx("button", `button-${look}`, small && "button-small", className);
  if (barrier) return <BarredButton {...rest} className={classes} barrier={barrier} />;
  return (
    <button
      ref={button}
      type="button"
      {...rest}
      className={classes}
      disabled={disabled || busy}
      aria-busy={busy || undefined}
    />
  );
}

type BarredProps = Omit<ComponentProps<"button">, "ref"> & { barrier: string };

/** The reason is the title, and a click or a tap shows it, because touch screens show no titles. */
function BarredButton({ barrier, className, children, ...rest }: BarredProps) {
  return (
    <Popover
      label="Reason"
      button={children}
      buttonClassName={className}
      buttonProps={{ ...rest, onClick: undefined, "aria-disabled": true, title: barrier }}
    >
      <span className="button-reason">{barrierSentence(barrier)}</span>
    </Popover>
  );
}

type ButtonLinkProps = LinkProps & Look & { barrier?: Barrier };

export function ButtonLink(props: ButtonLinkProps) {
  const { look = "plain", small, barrier, className, ...rest } = props;
  if (barrier) {
    return (
      <Button look={look} small={small} barrier={barrier} className={className}>
        {rest.children}
      </Button>
    );
  }
  return (
    <Link
      {...rest}
      className={cx("button", `button-${look}`, small && "button-small", className)}
    />
  );
}
