// The slot-time of each day as a stacked bar; all bars have one scale.
import type { ClusterGoodput } from "@/shared/api/types";
import { partsOfSlots, shareOf, shareWords, slotHours } from "./ledger";

export function DayBars({ days }: { days: ClusterGoodput["days"] }) {
  const most = Math.max(...days.map((day) => day.slot_milliseconds), 1);
  return (
    <ol className="day-bars" aria-label="Slot-hours by day">
      {days.map((day) => {
        const parts = partsOfSlots(day.categories, day.slot_milliseconds);
        const productive = shareOf(day.categories, "productive", day.slot_milliseconds);
        return (
          <li key={day.day} className="day-bar">
            <span className="visually-hidden">
              {day.day}: {slotHours(day.slot_milliseconds)}, {shareWords(productive)} productive
            </span>
            <span className="day-stack" aria-hidden="true">
              <span
                className="day-parts"
                style={{ height: `${(day.slot_milliseconds / most) * 100}%` }}
              >
                {parts.map(({ category, words, colour, share }) => (
                  <span
                    key={category}
                    className={colour}
                    style={{ flexGrow: share }}
                    title={`${day.day}, ${words}: ${shareWords(share)}`}
                  />
                ))}
              </span>
            </span>
            <span className="day-name faint" aria-hidden="true">
              {day.day.slice(8)}
            </span>
          </li>
        );
      })}
    </ol>
  );
}
