// What the server says that it answers, as its OpenAPI document has it, fits what the studio reads.
import type { components } from "./schema";
import type * as page from "./page/types";

type Schemas = components["schemas"];
/** As it is sent: what is optional is absent, and nothing else is null. */
type Sent<T> = T extends (infer E)[] ? Sent<E>[] : T extends object ? { [K in keyof T]: Sent<Exclude<T[K], null>> } : T;
type Fits<Server extends Page, Page> = Server;

export type Checks = [
    Fits<Sent<Schemas["AppRow"]>, page.App>,
    Fits<Sent<Schemas["SessionRow"]>, page.SessionRow>,
    Fits<Sent<Schemas["SessionDetail"]>, page.Detail>,
    Fits<Sent<Schemas["RequestRow"]>, page.Request>,
    Fits<Sent<Schemas["EventRow"]>, page.Row>,
    Fits<Sent<Schemas["StateRow"]>, page.State>,
    Fits<Sent<Schemas["BlamedWrite"]>, page.BlamedWrite>,
    Fits<Sent<Schemas["CompareRow"]>, page.Comparison>,
    Fits<Sent<Schemas["MeRow"]>, Omit<page.Me, "role"> & { role: string }>,
];
