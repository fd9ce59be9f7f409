//! Masked comparisons of seccomp filters, adapted to libcontainer.
//!
//! In a configuration `value` is the mask and `valueTwo` the masked value to compare with.
//! libcontainer swaps them (its `seccomp::translate_op`), which turns "clone without any flag of a
//! new namespace" into "clone with any flags".

use oci_spec::runtime::{
    LinuxSeccomp, LinuxSeccompArg, LinuxSeccompArgBuilder, LinuxSeccompOperator, LinuxSyscall, Spec,
};

/// Swaps the operands of masked comparisons for libcontainer.
pub(in crate::supervisor) fn turn(spec: &mut Spec) -> Result<(), oci_spec::OciSpecError> {
    let mut linux = spec.linux().clone().unwrap_or_default();
    let Some(profile) = linux.seccomp() else { return Ok(()) };
    linux.set_seccomp(Some(turned(profile)?));
    spec.set_linux(Some(linux));
    Ok(())
}

fn turned(profile: &LinuxSeccomp) -> Result<LinuxSeccomp, oci_spec::OciSpecError> {
    let mut profile = profile.clone();
    let syscalls = profile.syscalls().iter().flatten().map(|syscall| {
        let mut syscall: LinuxSyscall = syscall.clone();
        if let Some(arguments) = syscall.args() {
            let arguments: Result<Vec<_>, _> = arguments.iter().map(argument).collect();
            syscall.set_args(Some(arguments?));
        }
        Ok(syscall)
    });
    let syscalls: Result<Vec<_>, oci_spec::OciSpecError> = syscalls.collect();
    profile.set_syscalls(Some(syscalls?));
    Ok(profile)
}

fn argument(argument: &LinuxSeccompArg) -> Result<LinuxSeccompArg, oci_spec::OciSpecError> {
    if argument.op() != LinuxSeccompOperator::ScmpCmpMaskedEq {
        return Ok(*argument);
    }
    LinuxSeccompArgBuilder::default()
        .index(argument.index())
        .op(argument.op())
        .value(argument.value_two().unwrap_or(0))
        .value_two(argument.value())
        .build()
}

#[cfg(test)]
mod tests {
    use nix::errno::Errno;

    use super::*;

    /// The filter applies to the test's thread only.
    #[test]
    fn a_masked_comparison_means_what_the_configuration_says() {
        let profile: LinuxSeccomp = serde_json::from_str(
            r#"{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["personality"], "action": "SCMP_ACT_ERRNO",
                "errnoRet": 38, "args": [{"index": 0, "value": 65280, "valueTwo": 4608, "op": "SCMP_CMP_MASKED_EQ"}]}]}"#,
        )
        .unwrap();
        nix::sys::prctl::set_no_new_privs().unwrap();
        libcontainer::seccomp::initialize_seccomp(&turned(&profile).unwrap()).unwrap();
        let asked = |persona: nix::libc::c_ulong| {
            #[expect(unsafe_code, reason = "there is no safe call")]
            // SAFETY: it takes a number, and affects this thread only.
            Errno::result(unsafe { nix::libc::personality(persona) })
        };
        assert_eq!(asked(0x1234), Err(Errno::ENOSYS), "under the mask is 0x12");
        assert!(asked(0xffff_ffff).is_ok(), "under the mask is something else");
    }
}
