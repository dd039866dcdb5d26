// The images of one name: the chosen one, with a slider over steps.
import { useState } from "react";
import { cx } from "@/shared/ui/cx";
import { contentAddress } from "./api";
import { StepSlider, useChosen } from "./StepSlider";
import type { Sequence } from "./sequences";

/** Images smaller than this are drawn with sharp pixels. */
const SMALL = 128;

export function ImageFigure({ jobId, name, items }: Sequence & { jobId: string }) {
  const [chosen, choose] = useChosen(items);
  const [isSmall, setSmall] = useState(false);
  if (!chosen) return null;
  const address = contentAddress(jobId, chosen);
  return (
    <figure className="artifact panel">
      <figcaption className="artifact-title" title={name}>
        {name}
      </figcaption>
      <a
        className="artifact-frame"
        href={address}
        target="_blank"
        rel="noreferrer"
        aria-label={`Open the image of ${name}`}
      >
        <img
          src={address}
          alt={chosen.caption || name}
          className={cx("artifact-image", isSmall && "artifact-pixels")}
          onLoad={({ currentTarget }) => setSmall(currentTarget.naturalWidth < SMALL)}
        />
      </a>
      <StepSlider name={name} items={items} chosen={chosen} onChoose={choose} />
      {chosen.caption && <p className="artifact-caption small">{chosen.caption}</p>}
    </figure>
  );
}
