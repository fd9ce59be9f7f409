//! The seccomp profile `RuntimeDefault`: an allow list, as in other container runtimes.
//!
//! Forbidden system calls return EPERM. Calls newer than these lists, or than the machine's
//! libseccomp, return ENOSYS, as if the kernel lacked them: C libraries then fall back, where EPERM
//! would be a failure (glibc since 2.39 and musl since 1.2.5 change modes by `fchmodat2`).

use std::collections::BTreeSet;

use serde_json::{Value, json};

/// Returns the profile, with the system calls that the container's capabilities allow.
pub(super) fn profile(capabilities: &BTreeSet<String>) -> Value {
    const NAMESPACES: u64 = 0x7E02_0000;
    const EPERM: u32 = 1;
    const ENOSYS: u32 = 38;
    let mut syscalls = vec![
        json!({"names": ALLOWED.split_whitespace().collect::<Vec<_>>(), "action": "SCMP_ACT_ALLOW"}),
        json!({"names": ["socket"], "action": "SCMP_ACT_ALLOW", "args": [{"index": 0, "value": 40, "op": "SCMP_CMP_NE"}]}),
        json!({"names": ["socket"], "action": "SCMP_ACT_ERRNO", "errnoRet": EPERM,
            "args": [{"index": 0, "value": 40, "op": "SCMP_CMP_EQ"}]}),
    ];
    for personality in [0_u64, 0x8, 0x20000, 0x20008, 0xFFFF_FFFF] {
        syscalls.push(json!({
            "names": ["personality"], "action": "SCMP_ACT_ALLOW",
            "args": [{"index": 0, "value": personality, "op": "SCMP_CMP_EQ"}],
        }));
    }
    let mut allowed = BTreeSet::new();
    let mut forbidden: BTreeSet<&str> = FORBIDDEN.split_whitespace().collect();
    for (capability, names) in BY_CAPABILITY {
        let has = capabilities.contains(*capability);
        let calls = if has { &mut allowed } else { &mut forbidden };
        calls.extend(names.split_whitespace());
    }
    // They have separate rules.
    forbidden.retain(|name| !allowed.contains(name) && !["clone", "clone3"].contains(name));
    syscalls.push(json!({"names": forbidden, "action": "SCMP_ACT_ERRNO", "errnoRet": EPERM}));
    if !allowed.is_empty() {
        syscalls.push(json!({"names": allowed, "action": "SCMP_ACT_ALLOW"}));
    }
    if !capabilities.contains("CAP_SYS_ADMIN") {
        // A single rule, and the default for the rest: libseccomp need not tell several masks of
        // one argument apart.
        syscalls.push(json!({
            "names": ["clone"], "action": "SCMP_ACT_ALLOW",
            "args": [{"index": 0, "value": NAMESPACES, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}],
        }));
    }
    let architectures = if cfg!(target_arch = "aarch64") {
        json!(["SCMP_ARCH_AARCH64", "SCMP_ARCH_ARM"])
    } else {
        json!(["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"])
    };
    // `clone3` hides its flags from filters, and returns ENOSYS like a missing call.
    json!({"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": ENOSYS, "architectures": architectures, "syscalls": syscalls})
}

const ALLOWED: &str = "accept accept4 access adjtimex alarm bind brk capget capset chdir chmod chown chown32 \
    clock_adjtime clock_adjtime64 clock_getres clock_getres_time64 clock_gettime clock_gettime64 clock_nanosleep \
    clock_nanosleep_time64 close close_range connect copy_file_range creat dup dup2 dup3 epoll_create epoll_create1 \
    epoll_ctl epoll_ctl_old epoll_pwait epoll_pwait2 epoll_wait epoll_wait_old eventfd eventfd2 execve execveat exit \
    exit_group faccessat faccessat2 fadvise64 fadvise64_64 fallocate fanotify_mark fchdir fchmod fchmodat fchown \
    fchown32 fchownat fcntl fcntl64 fdatasync fgetxattr flistxattr flock fork fremovexattr fsetxattr fstat fstat64 \
    fstatat64 fstatfs fstatfs64 fsync ftruncate ftruncate64 futex futex_time64 futimesat getcpu getcwd getdents \
    getdents64 getegid getegid32 geteuid geteuid32 getgid getgid32 getgroups getgroups32 getitimer getpeername getpgid \
    getpgrp getpid getppid getpriority getrandom getresgid getresgid32 getresuid getresuid32 getrlimit get_robust_list \
    getrusage getsid getsockname getsockopt get_thread_area gettid gettimeofday getuid getuid32 getxattr \
    inotify_add_watch inotify_init inotify_init1 inotify_rm_watch io_cancel ioctl io_destroy io_getevents io_pgetevents \
    io_pgetevents_time64 ioprio_get ioprio_set io_setup io_submit ipc kill landlock_add_rule landlock_create_ruleset \
    landlock_restrict_self lchown lchown32 lgetxattr link linkat listen listxattr llistxattr _llseek lremovexattr lseek \
    lsetxattr lstat lstat64 madvise membarrier memfd_create memfd_secret mincore mkdir mkdirat mknod mknodat mlock \
    mlock2 mlockall mmap mmap2 mprotect mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedreceive_time64 \
    mq_timedsend mq_timedsend_time64 mq_unlink mremap msgctl msgget msgrcv msgsnd msync munlock munlockall munmap \
    name_to_handle_at nanosleep newfstatat _newselect open openat openat2 pause pidfd_open pidfd_send_signal pipe pipe2 \
    pkey_alloc pkey_free pkey_mprotect poll ppoll ppoll_time64 prctl pread64 preadv preadv2 prlimit64 process_mrelease \
    process_vm_readv process_vm_writev pselect6 pselect6_time64 ptrace pwrite64 pwritev pwritev2 read readahead readlink \
    readlinkat readv recv recvfrom recvmmsg recvmmsg_time64 recvmsg remap_file_pages removexattr rename renameat \
    renameat2 restart_syscall rmdir rseq rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn \
    rt_sigsuspend rt_sigtimedwait rt_sigtimedwait_time64 rt_tgsigqueueinfo sched_getaffinity sched_getattr \
    sched_getparam sched_get_priority_max sched_get_priority_min sched_getscheduler sched_rr_get_interval \
    sched_rr_get_interval_time64 sched_setaffinity sched_setattr sched_setparam sched_setscheduler sched_yield seccomp \
    select semctl semget semop semtimedop semtimedop_time64 send sendfile sendfile64 sendmmsg sendmsg sendto setfsgid \
    setfsgid32 setfsuid setfsuid32 setgid setgid32 setgroups setgroups32 setitimer setpgid setpriority setregid \
    setregid32 setresgid setresgid32 setresuid setresuid32 setreuid setreuid32 setrlimit set_robust_list setsid \
    setsockopt set_thread_area set_tid_address setuid setuid32 setxattr shmat shmctl shmdt shmget shutdown sigaltstack \
    signalfd signalfd4 sigprocmask sigreturn socketcall socketpair splice stat stat64 statfs statfs64 statx symlink \
    symlinkat sync sync_file_range syncfs sysinfo tee tgkill time timer_create timer_delete timer_getoverrun \
    timer_gettime timer_gettime64 timer_settime timer_settime64 timerfd_create timerfd_gettime timerfd_gettime64 \
    timerfd_settime timerfd_settime64 times tkill truncate truncate64 ugetrlimit umask uname unlink unlinkat utime \
    utimensat utimensat_time64 utimes vfork vmsplice wait4 waitid waitpid write writev arch_prctl modify_ldt \
    cachestat fchmodat2 futex_requeue futex_wait futex_waitv futex_wake getxattrat listmount listxattrat lsm_get_self_attr \
    lsm_list_modules lsm_set_self_attr map_shadow_stack mseal removexattrat setxattrat statmount uretprobe";

/// System calls that no capability of [`BY_CAPABILITY`] allows.
const FORBIDDEN: &str = "_sysctl add_key afs_syscall create_module get_kernel_syms getpmsg io_uring_enter io_uring_register \
    io_uring_setup kexec_file_load kexec_load keyctl migrate_pages move_pages nfsservctl pivot_root putpmsg query_module \
    request_key security swapoff swapon sysfs tuxcall uselib userfaultfd ustat vm86 vm86old vserver";

const BY_CAPABILITY: &[(&str, &str)] = &[
    ("CAP_DAC_READ_SEARCH", "open_by_handle_at"),
    (
        "CAP_SYS_ADMIN",
        "bpf clone clone3 fanotify_init fsconfig fsmount fsopen fspick lookup_dcookie mount mount_setattr move_mount \
         open_tree perf_event_open quotactl quotactl_fd setdomainname sethostname setns syslog umount umount2 unshare",
    ),
    ("CAP_BPF", "bpf"),
    ("CAP_PERFMON", "perf_event_open"),
    ("CAP_SYS_BOOT", "reboot"),
    ("CAP_SYS_CHROOT", "chroot"),
    ("CAP_SYS_MODULE", "delete_module init_module finit_module"),
    ("CAP_SYS_PACCT", "acct"),
    ("CAP_SYS_PTRACE", "kcmp pidfd_getfd process_madvise"),
    ("CAP_SYS_RAWIO", "iopl ioperm"),
    ("CAP_SYS_TIME", "settimeofday stime clock_settime clock_settime64"),
    ("CAP_SYS_TTY_CONFIG", "vhangup"),
    (
        "CAP_SYS_NICE",
        "get_mempolicy mbind set_mempolicy set_mempolicy_home_node",
    ),
    ("CAP_SYSLOG", "syslog"),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// libseccomp rejects a call that is both allowed and forbidden.
    #[test]
    fn no_call_has_rules_that_contradict() {
        for capabilities in [
            BTreeSet::new(),
            BTreeSet::from(["CAP_SYS_ADMIN".to_owned(), "CAP_BPF".to_owned()]),
        ] {
            let profile = profile(&capabilities);
            let mut rules: BTreeMap<&str, Vec<&Value>> = BTreeMap::new();
            for rule in profile["syscalls"].as_array().unwrap() {
                for name in rule["names"].as_array().unwrap() {
                    rules.entry(name.as_str().unwrap()).or_default().push(rule);
                }
            }
            for (name, rules) in &rules {
                let masks = rules
                    .iter()
                    .filter(|rule| rule["args"][0]["op"] == "SCMP_CMP_MASKED_EQ");
                let bare = rules.iter().filter(|rule| rule["args"].is_null()).count();
                assert!(masks.count() + bare <= 1, "{name}: {rules:?}");
            }
            assert_eq!(rules["clone"].len(), 1);
            assert_eq!(rules.contains_key("clone3"), capabilities.contains("CAP_SYS_ADMIN"));
        }
    }
}
