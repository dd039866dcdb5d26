// A modal dialog on the browser's own <dialog>: it traps the focus, closes on Esc, returns the focus.
import { type ReactNode, useId, useLayoutEffect, useRef } from "react";
import { Button } from "./Button";
import "./Dialog.css";

interface DialogProps {
  title: string;
  /** Called on Esc, on the close button and on a click outside the dialog. */
  onClose: () => void;
  children: ReactNode;
  /** Buttons, the one that carries it out last. */
  footer?: ReactNode;
  wide?: boolean;
}

/** Open while it is rendered. */
export function Dialog({ title, onClose, children, footer, wide }: DialogProps) {
  const dialog = useRef<HTMLDialogElement>(null);
  const heading = useId();
  // Closed before it is removed, because only close() returns the focus.
  useLayoutEffect(() => {
    const opened = dialog.current;
    opened?.showModal();
    return () => opened?.close();
  }, []);
  return (
    // biome-ignore lint/a11y/useKeyWithClickEvents: Esc closes it, by the browser's own doing
    <dialog
      ref={dialog}
      className={wide ? "dialog dialog-wide" : "dialog"}
      aria-labelledby={heading}
      onCancel={(event) => {
        event.preventDefault();
        onClose();
      }}
      onClick={(event) => {
        if (event.target === event.currentTarget) onClose();
      }}
    >
      <div className="dialog-frame">
        <header className="dialog-header">
          <h2 id={heading}>{title}</h2>
          <Button look="quiet" small aria-label="Close" onClick={onClose}>
            ✕
          </Button>
        </header>
        <div className="dialog-body">{children}</div>
        {footer && <footer className="dialog-footer">{footer}</footer>}
      </div>
    </dialog>
  );
}
