// The layouts in the spec of a program, by number of slots.
import type { ProgramPlan } from "@/shared/api/types";
import { plural } from "@/shared/format/numbers";
import { layoutsBySize } from "./layoutsBySize";

export function ListedLayouts({ plan }: { plan: ProgramPlan }) {
  return (
    <section className="plan-part" aria-label="Layouts">
      <h3>{plural(plan.layouts.length, "layout")}</h3>
      <dl className="facts">
        {layoutsBySize(plan.layouts).map(([size, names]) => (
          <div key={size}>
            <dt>{plural(size, "slot")}</dt>
            <dd>
              {names.map((name, index) => (
                <span key={name}>
                  {index > 0 && ", "}
                  {name === plan.name ? <strong>{name} (this one)</strong> : name}
                </span>
              ))}
            </dd>
          </div>
        ))}
      </dl>
    </section>
  );
}
