// Why a pod does not run as it should, in words.
import type { Thing } from './api';
import { filled, text } from './texts';

type Status = Thing['status'];

/** One sentence for each thing that is wrong; none for a pod that is well. */
export function why(pod: Thing): string[] {
    const status = pod.status ?? {};
    const unplaced = status.conditions?.find((own: Status) => own.type === 'PodScheduled' && own.status === 'False');
    const of = (all: Status[] | undefined, main: boolean) => (all ?? []).flatMap((own) => ofContainer(own, pod, main));
    return [
        ...(unplaced ? [filled(text.why.place, unplaced.message ?? '')] : []),
        ...of(status.initContainerStatuses, false),
        ...of(status.containerStatuses, true),
    ];
}

function ofContainer(own: Status, pod: Thing, main: boolean): string[] {
    const { name, image, state = {}, lastState, restartCount } = own;
    const { reason = '', message = '' } = state.waiting ?? {};
    if (/^(ErrImage|ImagePull|ImageInspect|Registry|InvalidImage)/.test(reason)) return [filled(text.why.image, name, image, message)];
    if (reason === 'CrashLoopBackOff') return [filled(text.why.crash, name, restartCount, end(lastState?.terminated))];
    if (/Error$/.test(reason)) return [filled(text.why.start, name, message)];
    if (state.terminated?.exitCode) return [filled(text.why.ended, name, end(state.terminated))];
    const probed = pod.spec?.containers?.find((spec: Status) => spec.name === name);
    const probe = own.started === false ? 'startup' : 'readiness';
    if (main && state.running && !own.ready && probed?.[`${probe}Probe`] && !pod.metadata.deletionTimestamp) return [filled(text.why[probe], name)];
    return [];
}

function end(terminated: Status): string {
    const { exitCode, reason, message } = terminated ?? {};
    const code = filled(text.why.code, exitCode ?? '?');
    return [code, reason === 'OOMKilled' ? text.why.memory : '', message].filter(Boolean).join(' ');
}
