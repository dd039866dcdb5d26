// The equivalent command line of a button, with a copy button.
import { useState } from "react";
import { Button } from "./Button";
import "./CommandLine.css";

interface CommandLineProps {
  command: string;
  /** What the command does, for screen readers. */
  label?: string;
  /** The text is no command: it is a link, for example. */
  isText?: boolean;
}

export function CommandLine({
  command,
  label = "The same by command line",
  isText,
}: CommandLineProps) {
  return (
    <div className="command">
      <code className="command-text" title={label}>
        {isText ? command : command.split("\n").map(shownLine)}
      </code>
      <CopyButton text={command} />
    </div>
  );
}

function shownLine(line: string, at: number) {
  const words = line.trimStart();
  return (
    <span key={at} className="command-line">
      {at === 0 && (
        <span className="command-prompt" aria-hidden="true">
          ${" "}
        </span>
      )}
      <span className="command-indent">{line.slice(0, line.length - words.length)}</span>
      {words}
    </span>
  );
}

/** A text in the font of code, with a copy button. */
export function CodeWithCopy({ text, label }: { text: string; label?: string }) {
  return (
    <>
      <code>{text}</code>
      <CopyButton text={text} label={label} />
    </>
  );
}

const SHOWN_MILLISECONDS = 1500;

export function CopyButton({ text, label = "Copy" }: { text: string; label?: string }) {
  const [said, setSaid] = useState<string | null>(null);
  const copy = async () => {
    setSaid((await copied(text)) ? "Copied" : "Select and copy");
    setTimeout(() => setSaid(null), SHOWN_MILLISECONDS);
  };
  return (
    <Button look="quiet" small className="command-copy" onClick={copy}>
      <span aria-live="polite">{said ?? label}</span>
    </Button>
  );
}

/** Copy a text and return whether that worked; a page without HTTPS has no access to the clipboard. */
async function copied(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}
