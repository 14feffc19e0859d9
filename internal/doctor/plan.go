// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/kernel"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/netns"
	"github.com/sockhealth/sockhealth/internal/prober"
	"github.com/sockhealth/sockhealth/internal/sockdiag"
	"github.com/sockhealth/sockhealth/internal/sockets"
)

// plan is one check.
type plan struct {
	name      string
	essential bool   // without it the agent cannot run
	lost      string // what the agent cannot do without it
	remedy    string // where the error does not know better
	// try returns what it found on a bench of its own, now what a running agent has.
	try func(*bench) (string, error)
	now func(*Agent) (string, error)
}

// plans are the checks beyond the requirements, in an order in which each stands
// on those before it.
func plans() []plan {
	return slices.Concat(groundPlans(), lookPlans(), actPlans(), adoptPlans(), guardPlans())
}

// groundPlans are about the machine, and make what the others stand on.
func groundPlans() []plan {
	return []plan{
		{
			name: "cgroup", essential: true, try: cgroupRoot, now: cgroupNow,
			lost:   "the agent does not run, unless --cgroup names a cgroup v2 directory",
			remedy: "mount cgroup v2: mount -t cgroup2 none /sys/fs/cgroup",
		},
		{
			name: "namespaces", try: namespaces, now: namespacesNow,
			lost:   "sockets of namespaces that cannot be seen are not listed, explained or probed",
			remedy: "grant CAP_SYS_PTRACE, and look for a security module that keeps processes from being looked at",
		},
		{
			name: "programs", essential: true, try: programs, now: programsNow,
			remedy: "see the message; the kernel needs CONFIG_BPF_SYSCALL, CONFIG_CGROUP_BPF and BTF",
		},
		{
			name: "foreign_programs", essential: true, try: foreignPrograms, now: foreignProgramsNow,
			remedy: "see the message",
		},
		{
			name: "netns", essential: true, try: ownNamespace, now: ownNamespaceNow,
			lost:   "the agent enters network namespaces to look and to probe",
			remedy: "grant CAP_SYS_ADMIN; the kernel needs CONFIG_NET_NS",
		},
	}
}

// lookPlans are about finding sockets and seeing them.
func lookPlans() []plan {
	return []plan{
		{
			name: "inet_diag", try: inetDiag, now: inetDiagNow,
			lost:   "which connections are bounded is not checked; without scan, too, siblings of a dead connection are not judged, sockets cannot be listed, nor found by cookie or local address alone",
			remedy: "load inet_diag and tcp_diag, or run a kernel with CONFIG_INET_TCP_DIAG",
		},
		{
			name: "look", essential: true, try: look, now: lookNow,
			lost:   "no connection can be judged",
			remedy: "see the message",
		},
		{
			name: kernel.SocketCgroup.String(), try: socketCgroup, now: has(kernel.SocketCgroup),
			lost:   kernel.SocketCgroup.Without(),
			remedy: runLinux(kernel.SocketCgroup),
		},
		{
			name: kernel.Scan.String(), try: scan, now: has(kernel.Scan),
			lost:   "siblings of a dead connection are not judged, and sockets cannot be listed",
			remedy: runLinux(kernel.Scan),
		},
	}
}

// actPlans are about what is done with them.
func actPlans() []plan {
	return []plan{
		{
			name: kernel.Hold.String(), try: hold, now: has(kernel.Hold),
			lost:   "the full hold on what applications set: " + kernel.Hold.Without(),
			remedy: runLinux(kernel.Hold),
		},
		{
			name: kernel.Provoke.String(), try: provoke, now: has(kernel.Provoke),
			lost:   "the kernel's own keepalive as probe: " + kernel.Provoke.Without(),
			remedy: runLinux(kernel.Provoke),
		},
		{
			name: kernel.Silence.String(), try: watch, now: has(kernel.Silence),
			lost:   kernel.Silence.Without(),
			remedy: "see the message; the kernel needs CONFIG_BPF_SYSCALL and BTF, as the other programs do",
		},
		{
			name: "raw_probe", try: rawProbe, now: rawProbeNow,
			lost:   "connections with data in flight are not judged (unknown); the kernel's bound ends them",
			remedy: "grant CAP_NET_RAW, and look for a firewall or seccomp rule that forbids raw sockets",
		},
		{
			name: kernel.ForeignSource.String(), try: foreignSource, now: foreignSourceNow,
			lost:   "the probe from another host's address: " + kernel.ForeignSource.Without(),
			remedy: runLinux(kernel.ForeignSource),
		},
		{
			name: "destroy", try: destroy, now: destroyNow,
			lost:   "dead connections are found and not closed; the kernel's bound ends them",
			remedy: "run a kernel with CONFIG_INET_DIAG_DESTROY=y",
		},
		{
			name: kernel.BPFDestroy.String(), try: bpfDestroy, now: has(kernel.BPFDestroy),
			lost:   "dead connections are found and not closed; the kernel's bound ends them",
			remedy: runLinux(kernel.BPFDestroy) + ", or one with CONFIG_INET_DIAG_DESTROY=y",
		},
	}
}

// adoptPlans are about connections that were not seen to open.
func adoptPlans() []plan {
	return []plan{
		{
			name: kernel.Adopt.String(), try: adopt, now: has(kernel.Adopt),
			lost:   kernel.Adopt.Without(),
			remedy: runLinux(kernel.Adopt),
		},
		{
			name: kernel.AdoptEvents.String(), try: adoptEvents, now: has(kernel.AdoptEvents),
			lost:   kernel.AdoptEvents.Without(),
			remedy: runLinux(kernel.AdoptEvents),
		},
	}
}

// runLinux is the remedy where a feature is missing.
func runLinux(f kernel.Feature) string { return fmt.Sprintf("run Linux %s or later", f.Since()) }

func cgroupRoot(*bench) (string, error) { return loader.CgroupRoot() }

// namespaces counts those that can be seen.
func namespaces(*bench) (string, error) {
	seen, err := netns.List()
	for _, ns := range seen {
		_ = ns.Close()
	}
	if err != nil {
		err = fmt.Errorf("%d seen; %w", len(seen), err)
	}
	return fmt.Sprintf("%d seen", len(seen)), err
}

// programs loads them all.
func programs(b *bench) (string, error) {
	if b.lacking {
		return "", fmt.Errorf("%w: needs what is missing above", errUntested)
	}
	p, err := loader.Load(nil)
	if err != nil {
		return "", err
	}
	b.programs = p
	return "sockops, setsockopt and lookup load", nil
}

// foreignPrograms looks who else is attached at the root of the hierarchy.
func foreignPrograms(*bench) (string, error) {
	root, err := loader.CgroupRoot()
	if err != nil {
		return "", fmt.Errorf("%w: needs the root of the hierarchy", errUntested)
	}
	return around(root)
}

// around tells of the programs of others at a cgroup and above, and whether they go
// with ours.
func around(cgroup string) (string, error) {
	all, err := loader.Around(cgroup)
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("%w: the cgroup is gone", errUntested)
	}
	if err != nil {
		return "", err
	}
	var beside []string
	for i := range all {
		f := &all[i]
		if err := f.Conflict(cgroup); err != nil && f.Bars() {
			return "", err
		} else if err != nil {
			return "", fmt.Errorf("%w: %w", errPartly, err)
		}
		beside = append(beside, f.String())
	}
	if len(beside) == 0 {
		return "nobody else's are attached", nil
	}
	return "beside " + strings.Join(beside, ", "), nil
}

// ownNamespace makes the namespace and the connection that the others need.
func ownNamespace(b *bench) (string, error) {
	if err := b.open(); err != nil {
		return "", err
	}
	return fmt.Sprintf("made %s and a connection in it", b.ns), nil
}

// inetDiag finds the connection by its cookie.
func inetDiag(b *bench) (string, error) {
	if b.pair == nil {
		return "", fmt.Errorf("%w: needs a network namespace", errUntested)
	}
	c, err := sockdiag.Dial(b.ns)
	if err != nil {
		return "", err
	}
	defer c.Close()
	n := 0
	err = c.List(sockdiag.Filter{RemotePort: b.id.Remote.Port()}, func(s sockdiag.Socket) error {
		if s.ID == b.id {
			n++
		}
		return nil
	})
	if err == nil && n != 1 {
		err = fmt.Errorf("%d sockets listed with the identity of one that is there", n)
	}
	return "lists a connection with its cookie", err
}

// look finds the connection by the look-up program.
func look(b *bench) (string, error) {
	if err := b.ready(); err != nil {
		return "", err
	}
	s, err := b.look()
	if err == nil && s.Cookie != b.id.Cookie {
		err = fmt.Errorf("found cookie %d, want %d", s.Cookie, b.id.Cookie)
	}
	return "finds a connection by its addresses", err
}

// scan finds it by the walk.
func scan(b *bench) (string, error) {
	if err := b.ready(); err != nil {
		return "", err
	}
	n := 0
	err := b.ns.Do(func() error {
		return b.programs.Scan(func(s conn.Snapshot) error {
			if s.Cookie == b.id.Cookie {
				n++
			}
			return nil
		})
	})
	if err == nil && n != 1 {
		err = fmt.Errorf("a walk met the connection %d times", n)
	}
	return "a walk meets the connection", err
}

// hold asks what the programs made of the kernel when they were loaded.
func hold(b *bench) (string, error) {
	if b.programs == nil {
		return "", fmt.Errorf("%w: needs the programs", errUntested)
	}
	return "an option that an application sets brings the others with it", b.programs.Lacks(kernel.Hold)
}

// provoke runs the walk that sets keepalives. The connection has no record, so
// that nothing is set: that the program loads says that the kernel can.
func provoke(b *bench) (string, error) {
	if err := b.ready(); err != nil {
		return "", err
	}
	return "loads and walks", b.ns.Do(func() error {
		_, err := b.programs.Provoke([]uint64{b.id.Cookie})
		return err
	})
}

const (
	// answerWithin is how long things may take that take microseconds, also where the
	// machine has little time for us.
	answerWithin = 10 * time.Second
	// quietFor keeps the answer from the tick of the segment before it.
	quietFor = 20 * time.Millisecond
)

// rawProbe sends one and waits for its answer to show in the counters.
func rawProbe(b *bench) (string, error) {
	if err := b.ready(); err != nil {
		return "", err
	}
	before, err := b.await(func(s *conn.Snapshot) bool { return s.PacketAge >= quietFor })
	if err != nil {
		return "", err
	}
	began := time.Now()
	if _, err := prober.New().Send(b.ns, &before); err != nil {
		return "", err
	}
	_, err = b.await(func(s *conn.Snapshot) bool { return s.AckStamp != before.AckStamp })
	if errors.Is(err, errSilent) {
		err = fmt.Errorf("sent, and not answered within %s", answerWithin)
	}
	return fmt.Sprintf("sent and answered within %s", time.Since(began).Round(time.Microsecond)), err
}

// foreignSource looks up the way of a connection whose source is no address of
// this host (TEST-NET-1), as a transparent proxy's is.
func foreignSource(b *bench) (string, error) {
	if err := b.ready(); err != nil {
		return "", err
	}
	s, err := b.look()
	if err != nil {
		return "", err
	}
	s.Local = foreignAddr(s.Local.Port())
	return "finds the way of a transparent proxy's connection", prober.New().Route(b.ns, &s)
}

// destroy closes the connection and reads what its application sees.
func destroy(b *bench) (string, error) {
	if b.pair == nil {
		return "", fmt.Errorf("%w: needs a network namespace", errUntested)
	}
	c, err := sockdiag.Dial(b.ns)
	if err != nil {
		return "", err
	}
	defer c.Close()
	if err := c.Destroy(b.id); err != nil {
		return "", err
	}
	return "closes exactly one connection, its application reads ECONNABORTED", b.aborted()
}

// bpfDestroy closes a second connection by the program, and looks whether a third
// is still there.
func bpfDestroy(b *bench) (string, error) {
	if err := b.ready(); err != nil {
		return "", err
	}
	doomed, err := b.connect()
	if err != nil {
		return "", err
	}
	defer doomed.close()
	kept, err := b.connect()
	if err != nil {
		return "", err
	}
	defer kept.close()
	if err := b.ns.Do(func() error {
		return b.programs.Destroy([]loader.Condemned{{ID: doomed.id, Until: conn.Now() + answerWithin}})[0]
	}); err != nil {
		return "", err
	}
	if _, err := sockets.New(b.programs).Again(b.ns, kept.id); err != nil {
		return "", fmt.Errorf("closed, and so is another: %w", err)
	}
	return "closes exactly one connection without inet_diag", doomed.aborted()
}

// aborted reports whether the client's application sees that it was closed.
func (p *pair) aborted() error {
	if err := p.client.SetReadDeadline(time.Now().Add(answerWithin)); err != nil {
		return err
	}
	if _, err := p.client.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNABORTED) {
		return fmt.Errorf("acknowledged, but its application read %v, want ECONNABORTED", err)
	}
	return nil
}
