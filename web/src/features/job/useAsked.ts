// Which dialog of a job page is open: the one that the URL names, as long as it is possible.
import { useEffect, useRef, useState } from "react";
import type { Job } from "@/shared/api/types";
import { type DialogVerb, isDialogVerb, VERBS } from "@/shared/job/verbs";
import { useView } from "@/shared/job/view";

export interface Asked {
  verb: DialogVerb;
  /** Why it is no longer possible; the dialog then stays to say so. */
  gone: string | null;
  onClose: () => void;
}

const DROPPED = { dialog: null, checkpoint: null, aim: null };

/**
 * Return what is asked for in a dialog.
 *
 * A verb that the job's state takes away leaves the URL at once, so that no later state brings the
 * dialog back by itself; the dialog that showed it stays, with the reason, until it is closed.
 */
export function useAsked(job: Job): Asked | null {
  const view = useView();
  const [gone, setGone] = useState<Pick<Asked, "verb" | "gone"> | null>(null);
  const isClosing = useRef(false);
  const word = view.dialog;
  const asked = isDialogVerb(word) ? word : null;
  const isLegal = asked !== null && job.verbs.includes(asked);
  const isStale = word !== null && !isLegal;
  if (isStale && asked !== null && gone?.verb !== asked && !isClosing.current) {
    setGone({ verb: asked, gone: goneWords(job, asked) });
  }
  const { change } = view;
  useEffect(() => {
    if (word === null) isClosing.current = false;
    else if (isStale) change(DROPPED);
  }, [word, isStale, change]);
  const onClose = () => {
    isClosing.current = true;
    setGone(null);
    change(DROPPED);
  };
  if (isLegal) return { verb: asked, gone: null, onClose };
  return gone === null ? null : { ...gone, onClose };
}

function goneWords(job: Job, verb: DialogVerb): string {
  const why = job.reason ? ` (${job.reason})` : "";
  return `${VERBS[verb].label} is no longer possible: the job is ${job.state} now${why}.`;
}
