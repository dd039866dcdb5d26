// A modal dialog on the browser's own <dialog>: it traps the focus, closes on Esc, returns the focus.
import { type ReactNode, useId, useLayoutEffect, useRef } from "react";
import { Button, type ButtonLook, focusPage } from "./Button";
import { CommandLine } from "./CommandLine";
import { InlineError } from "./Notice";
import "./Dialog.css";

interface DialogProps {
  title: string;
  /** Called on Esc, on the close button and on a click outside the dialog. */
  onClose: () => void;
  children: ReactNode;
  /** Buttons; the one that performs the action is last. */
  footer?: ReactNode;
  wide?: boolean;
  /** Why the action is no longer possible; the dialog stays open to show it. */
  gone?: string | null;
}

const FIRST_FIELD =
  '.dialog-body :is(input:not([type=radio], [tabindex="-1"]), input:checked, select, textarea):not(:disabled)';

/** A dialog that is open while it is rendered; the initial focus is its first field, else its title. */
export function Dialog({ title, onClose, children, footer, wide, gone }: DialogProps) {
  const dialog = useRef<HTMLDialogElement>(null);
  const heading = useId();
  // Closed before it is removed, because only close() returns the focus.
  useLayoutEffect(() => {
    const opened = dialog.current;
    opened?.showModal();
    const first = opened?.querySelector<HTMLElement>(FIRST_FIELD); // the browser would focus "Close"
    (first ?? opened?.querySelector("h2"))?.focus();
    return () => {
      opened?.close();
      // The opener may be gone, such as the button of a verb that has just been performed.
      if (document.activeElement === document.body) focusPage();
    };
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
        <header className="dialog-header row">
          <h2 id={heading} tabIndex={-1}>
            {title}
          </h2>
          <Button look="quiet" small aria-label="Close" onClick={onClose}>
            ✕
          </Button>
        </header>
        <div className="dialog-body">
          {gone != null && (
            <p className="dialog-gone" role="status">
              {gone}
            </p>
          )}
          {children}
        </div>
        {footer && <footer className="dialog-footer row">{footer}</footer>}
      </div>
    </dialog>
  );
}

interface ActionDialogProps extends Omit<DialogProps, "footer"> {
  /** Label of the button that sends the request. */
  label: ReactNode;
  look?: ButtonLook;
  disabled?: boolean;
  action: { isPending: boolean; error: unknown; mutate: () => void };
  /** Null for an action that only a browser session may do. */
  command: string | null;
}

/** A dialog that sends one request: its button, its error, the equivalent command line. */
export function ActionDialog(props: ActionDialogProps) {
  const { label, look = "primary", disabled, action, command, children, ...rest } = props;
  return (
    <Dialog
      {...rest}
      footer={
        <>
          <Button onClick={rest.onClose}>Back</Button>
          <Button
            look={look}
            busy={action.isPending}
            disabled={disabled || rest.gone != null}
            onClick={() => action.mutate()}
          >
            {label}
          </Button>
        </>
      }
    >
      {children}
      {action.error !== null && <InlineError error={action.error} />}
      {command !== null && <CommandLine command={command} />}
    </Dialog>
  );
}
