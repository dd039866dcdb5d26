// How long ago something happened, as part of a sentence.
import { age, moment } from "@/shared/format/time";
import { useNow } from "@/shared/ui/RelativeTime";

const MOMENT_SECONDS = 5;

/** `3 min ago`, or `just now`. */
export function Ago({ at }: { at: string }) {
  const seconds = Math.max(0, (useNow() - Date.parse(at)) / 1000);
  return (
    <time dateTime={at} title={moment(at)}>
      {seconds < MOMENT_SECONDS ? "just now" : `${age(seconds)} ago`}
    </time>
  );
}
