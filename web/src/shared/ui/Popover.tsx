// A small panel that a button opens, on the browser's own popover: Esc and a click outside close it.
import { type ComponentProps, type ReactNode, type ToggleEvent, useId, useRef } from "react";
import { cx } from "./cx";
import "./Popover.css";

const GAP = 6;
const MARGIN = 8;

interface PopoverProps {
  /** Content of the button. */
  button: ReactNode;
  buttonClassName?: string;
  /** Further properties of the button. */
  buttonProps?: Omit<ComponentProps<"button">, "ref">;
  /** Name of the panel. */
  label: string;
  /** Called when the panel opens, so that its content can be loaded then. */
  onOpen?: () => void;
  children: ReactNode;
}

export function Popover(props: PopoverProps) {
  const { button, buttonClassName, buttonProps, label, onOpen, children } = props;
  const id = useId();
  const opener = useRef<HTMLButtonElement>(null);
  const place = (event: ToggleEvent<HTMLDivElement>) => {
    if (event.newState === "open" && opener.current) {
      putBeside(event.currentTarget, opener.current);
      onOpen?.();
    }
  };
  return (
    <>
      <button
        {...buttonProps}
        ref={opener}
        type="button"
        className={cx("popover-button", buttonClassName)}
        popoverTarget={id}
        aria-haspopup="dialog"
      >
        {button}
      </button>
      <div
        id={id}
        popover="auto"
        className="popover"
        role="dialog"
        aria-label={label}
        onToggle={place}
      >
        {children}
      </div>
    </>
  );
}

/** Place the panel below its opener, or above if there is no room, and within the window. */
function putBeside(panel: HTMLElement, opener: HTMLElement): void {
  const from = opener.getBoundingClientRect();
  const { width, height } = panel.getBoundingClientRect();
  const left = Math.min(from.left, window.innerWidth - width - MARGIN);
  const isRoom = from.bottom + GAP + height < window.innerHeight - MARGIN;
  const top = isRoom ? from.bottom + GAP : from.top - GAP - height;
  panel.style.left = `${Math.max(MARGIN, left)}px`;
  panel.style.top = `${Math.max(MARGIN, top)}px`;
}
