// SPDX-License-Identifier: Apache-2.0

package loader

// The compiler is pinned here and nowhere else; the objects are committed, so
// that a plain go build needs no clang. `make check` demands that they match.
// The two -idirafter serve Debian's amd64 and arm64, where <asm/types.h> lies
// in a folder of its own.

//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -target bpfel -no-global-types -type sh_options -type sh_record -type sh_event -type sh_cause -type sh_fault -type sh_event_type -type sh_counters -type sh_prefix -type sh_rule -type sh_rules -type sh_rule_flags sockops ../../bpf/sockops.bpf.c -- -O2 -g -Wall -Werror -mcpu=v2 -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu
//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -target bpfel -no-global-types -type sh_options -type sh_record -type sh_look -type sh_look_packet -type sh_tuple -type sh_look_flags -type sh_look_result -type sh_record_flags lookup ../../bpf/lookup.bpf.c -- -O2 -g -Wall -Werror -mcpu=v2 -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu
//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -target bpfel -no-global-types iter ../../bpf/iter.bpf.c -- -O2 -g -Wall -Werror -mcpu=v2 -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu
//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -target bpfel -no-global-types -type sh_provoked provoke ../../bpf/provoke.bpf.c -- -O2 -g -Wall -Werror -mcpu=v2 -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu
//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -target bpfel -no-global-types -type sh_condemned -type sh_outcome destroy ../../bpf/destroy.bpf.c -- -O2 -g -Wall -Werror -mcpu=v2 -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu
//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -target bpfel -no-global-types -type sh_holder -type sh_holders_limits -type sh_said holders ../../bpf/holders.bpf.c -- -O2 -g -Wall -Werror -mcpu=v2 -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu
//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -target bpfel -no-global-types -type sh_addition convert ../../bpf/convert.bpf.c -- -O2 -g -Wall -Werror -mcpu=v2 -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu
//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -target bpfel -no-global-types -type sh_adoption -type sh_leave -type sh_adopt_outcome -type sh_refusal -type sh_wait -type sh_pass -type sh_listener -type sh_record_flags adopt ../../bpf/adopt.bpf.c -- -O2 -g -Wall -Werror -mcpu=v2 -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu
//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -target bpfel -no-global-types ends ../../bpf/ends.bpf.c -- -O2 -g -Wall -Werror -mcpu=v2 -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu
//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -target bpfel -no-global-types -type sh_suspect silence ../../bpf/silence.bpf.c -- -O2 -g -Wall -Werror -mcpu=v2 -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu
//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -target bpfel -no-global-types -type sh_guarded -type sh_guard_step guard ../../bpf/guard.bpf.c -- -O2 -g -Wall -Werror -mcpu=v2 -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu
