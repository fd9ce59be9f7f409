// Where everything stands in the picture of the flow: side by side, or one below the other on a narrow screen.

export interface Station {
    id: string;
    x: number;
    y: number;
    width: number;
    height: number;
}

export interface Arrow {
    /** The step that lights it. */
    step: string;
    points: [number, number][];
    label: [number, number];
    /** The label begins there, instead of lying around it. */
    begins?: boolean;
    /** Within a zone, whose ground is another color. */
    inner: boolean;
}

export interface Picture {
    width: number;
    height: number;
    zones: { id: 'control' | 'node'; x: number; y: number; width: number; height: number }[];
    stations: Station[];
    arrows: Arrow[];
}

/** `controllers` are one, or two where a Deployment has ReplicaSets in between. */
export function picture(controllers: string[], narrow: boolean): Picture {
    return narrow ? below(controllers) : beside(controllers);
}

function beside(controllers: string[]): Picture {
    const upper = ['server', 'store', ...controllers, 'scheduler'];
    const [top, bottom, height, width] = [84, 292, 72, 158];
    const pitch = (1140 - 190 - width) / (upper.length - 1);
    const stations: Station[] = [
        { id: 'user', x: 14, y: top, width: 118, height },
        ...upper.map((id, at) => ({ id, x: 190 + at * pitch, y: top, width, height })),
        { id: 'agent', x: 982, y: bottom, width, height },
        { id: 'network', x: 625, y: bottom, width: 190, height },
        { id: 'containers', x: 190, y: bottom, width: 270, height },
    ];
    const steps = ['received', 'stored', ...between(controllers)];
    const row = stations.slice(0, upper.length + 1);
    const middle = top + height / 2;
    const arrows = steps.map((step, at): Arrow => {
        const [from, to] = [row[at]!, row[at + 1]!];
        const [start, end] = [from.x + from.width + 3, to.x - 3];
        return { step, points: [[start, middle], [end, middle]], label: [(start + end) / 2, top - 14], inner: at > 0 };
    });
    const lower = bottom + height / 2;
    arrows.push(
        { step: 'seen', points: [[1065, top + height + 3], [1065, bottom - 3]], label: [976, 226], inner: false },
        { step: 'network', points: [[979, lower], [818, lower]], label: [902, lower - 14], inner: true },
        { step: 'started', points: [[622, lower], [463, lower]], label: [543, lower - 14], inner: true },
        { step: 'ready', points: [[265, bottom - 3], [265, top + height + 3]], label: [275, 226], begins: true, inner: false },
    );
    return {
        width: 1180,
        height: 400,
        zones: [
            { id: 'control', x: 168, y: 18, width: 996, height: 174 },
            { id: 'node', x: 168, y: 250, width: 996, height: 136 },
        ],
        stations,
        arrows,
    };
}

/** The steps that lead from the store to the scheduler. */
function between(controllers: string[]): string[] {
    return controllers.length > 1 ? ['makerAsked', 'podsAsked', 'bound'] : ['podsAsked', 'bound'];
}

function below(controllers: string[]): Picture {
    const ids = ['user', 'server', 'store', ...controllers, 'scheduler', 'agent', 'network', 'containers'];
    const steps = ['received', 'stored', ...between(controllers), 'seen', 'network', 'started'];
    const [height, pitch, gap] = [56, 94, 36];
    const upper = ids.indexOf('agent');
    const y = (at: number) => 14 + at * pitch + (at > 0 ? gap : 0) + (at >= upper ? gap : 0);
    const stations = ids.map((id, at) => ({ id, x: 70, y: y(at), width: 230, height }));
    const arrows = steps.map((step, at): Arrow => {
        const [start, end] = [y(at) + height + 3, y(at + 1) - 3];
        return { step, points: [[185, start], [185, end]], label: [197, (start + end) / 2 + 5], begins: true, inner: at > 0 && at + 1 !== upper };
    });
    const last = y(ids.length - 1) + height / 2;
    const server = y(1) + height / 2;
    arrows.push({ step: 'ready', points: [[67, last], [30, last], [30, server], [67, server]], label: [30, last + 50], begins: true, inner: true });
    return {
        width: 340,
        height: last + 70,
        zones: [
            { id: 'control', x: 8, y: y(1) - 32, width: 324, height: y(upper - 1) + height - y(1) + 44 },
            { id: 'node', x: 8, y: y(upper) - 32, width: 324, height: last - y(upper) + 90 },
        ],
        stations,
        arrows,
    };
}

/** The point that lies a part of the way along an arrow. */
export function along(points: [number, number][], part: number): [number, number] {
    const lengths = points.slice(1).map(([x, y], at) => Math.hypot(x - points[at]![0], y - points[at]![1]));
    let left = part * lengths.reduce((sum, length) => sum + length, 0);
    for (const [at, length] of lengths.entries()) {
        if (left <= length || at === lengths.length - 1) {
            const [[fromX, fromY], [toX, toY]] = [points[at]!, points[at + 1]!];
            const share = length ? Math.min(1, left / length) : 1;
            return [fromX + (toX - fromX) * share, fromY + (toY - fromY) * share];
        }
        left -= length;
    }
    return points[0]!;
}

/** The triangle at an arrow's end. */
export function tip(points: [number, number][]): string {
    const [[fromX, fromY], [x, y]] = [points.at(-2)!, points.at(-1)!];
    const length = Math.hypot(x - fromX, y - fromY) || 1;
    const [dx, dy] = [((x - fromX) / length) * 10, ((y - fromY) / length) * 10];
    return `${x},${y} ${x - dx - dy * 0.55},${y - dy + dx * 0.55} ${x - dx + dy * 0.55},${y - dy - dx * 0.55}`;
}
