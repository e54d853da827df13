// The part of preact and htm that the page uses. What stands in a template is not checked; handlers take any event.
export type Node = any;
type Slot = string | number | boolean | null | undefined | object | ((event: any) => any);
export function html(strings: TemplateStringsArray, ...values: Slot[]): Node;
export function render(node: Node, into: Element): void;
export function useState<T>(first: T | (() => T)): [T, (next: T | ((before: T) => T)) => void];
export function useEffect(run: () => void | (() => void), inputs?: unknown[]): void;
export function useLayoutEffect(run: () => void | (() => void), inputs?: unknown[]): void;
export function useMemo<T>(make: () => T, inputs: unknown[]): T;
export function useRef<T = any>(first?: T): { current: T };
