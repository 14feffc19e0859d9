// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/kernel"
	"github.com/sockhealth/sockhealth/internal/netns"
)

// adoption is the pass of adoption and what belongs to it.
type adoption struct {
	objects     adoptObjects
	ends        endsObjects
	noCallbacks error // why callback flags cannot be set from outside
	// began is when the programs were loaded: no judgement from before is under way
	// any more.
	began time.Duration

	mu     sync.Mutex
	passes uint64    // how many began, held by mu
	link   link.Link // of the tracepoint, nil before it is needed; held by mu
}

// adopter is what gives kernel.Adopt.
func (p *Programs) adopter() (*adoption, error) {
	return p.adopt.get(func() (*adoption, error) {
		a := &adoption{began: p.began}
		if err := p.loadObject("adopt", loadAdopt, &a.objects); err != nil {
			return nil, lacking(kernel.Adopt, err)
		}
		if err := p.loadObject("ends", loadEnds, &a.ends); err != nil {
			return nil, lacking(kernel.Adopt, errors.Join(err, a.objects.Close()))
		}
		if err := tryCallbacks(a.objects.ShCallbacks); err != nil {
			a.noCallbacks = lacking(kernel.AdoptEvents, err)
		}
		return a, nil
	})
}

// Close frees it, the tracepoint first.
func (a *adoption) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	var errs []error
	if a.link != nil {
		errs = append(errs, a.link.Close())
		a.link = nil
	}
	return errors.Join(append(errs, a.objects.Close(), a.ends.Close())...)
}

// tryCallbacks sets the callback flags of a socket of its own, in a namespace of
// its own.
func tryCallbacks(prog *ebpf.Program) error {
	ns, err := netns.New()
	if err != nil {
		return err
	}
	defer ns.Close()
	met := false
	err = ns.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return os.NewSyscallError("socket", err)
		}
		defer unix.Close(fd)
		if err := unix.Listen(fd, 1); err != nil {
			return os.NewSyscallError("listen", err)
		}
		return walk(prog, 4, func(b []byte) error {
			met = true
			if errno := -int32(binary.NativeEndian.Uint32(b)); errno != 0 {
				return fmt.Errorf("set callback flags of a socket: %w", unix.Errno(errno))
			}
			return nil
		})
	})
	if err == nil && !met {
		return errors.New("set callback flags of a socket: the walk did not meet it")
	}
	return err
}

// rootCgroup is the id of the cgroup v2 hierarchy's root.
const rootCgroup = 1

// watch attaches the tracepoint that tells of the end of adopted connections,
// where sockops is not sure to be called for each, or the agent before had it: it
// stays until Close, or longer where programs are pinned. One that was pinned is
// replaced only when the new one is there: who comes second finds nothing to tell.
func (a *adoption) watch(p *Programs) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.link != nil || a.noCallbacks == nil && p.seesAll() && !p.hadEnded {
		return nil
	}
	l, err := link.AttachTracing(link.TracingOptions{Program: a.ends.ShEnded})
	if err != nil {
		return fmt.Errorf("attach to tracepoint inet_sock_set_state: %w", err)
	}
	if p.pins != nil {
		if err := p.pins.put(endedName, l); err != nil {
			return errors.Join(err, l.Close())
		}
	}
	a.link = l
	p.watching.Store(true)
	return nil
}

// seesAll reports whether the programs are attached to the root of the hierarchy,
// so that no socket is outside their cgroup.
func (p *Programs) seesAll() bool {
	for _, l := range p.links {
		info, err := l.Info()
		if err != nil {
			return false
		}
		if c := info.Cgroup(); c == nil || c.CgroupId != rootCgroup {
			return false
		}
	}
	return len(p.links) == Attachments
}

// readPass reads what a pass has to know of the calling thread's namespace.
func readPass() (pass adoptShPass, err error) {
	for _, one := range []struct {
		name string
		max  uint64
		set  []func(uint64)
	}{
		{"ip_local_port_range", 65535, []func(uint64){
			func(n uint64) { pass.PortLo = uint16(n) }, func(n uint64) { pass.PortHi = uint16(n) },
		}},
		// What a socket can be told is limited; the namespace's own value is not.
		{"tcp_keepalive_time", 32767, []func(uint64){func(n uint64) { pass.IdleS = uint16(n) }}},
		{"tcp_keepalive_intvl", 32767, []func(uint64){func(n uint64) { pass.IntervalS = uint16(n) }}},
		{"tcp_keepalive_probes", 127, []func(uint64){func(n uint64) { pass.Count = uint8(n) }}},
	} {
		values, err := sysctl(one.name, len(one.set))
		if err != nil {
			return pass, err
		}
		for i, set := range one.set {
			set(max(min(values[i], one.max), 1))
		}
	}
	return pass, nil
}

// sysctl reads net.ipv4.NAME of the calling thread's namespace, n numbers.
func sysctl(name string, n int) ([]uint64, error) {
	path := "/proc/sys/net/ipv4/" + name
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read setting of the namespace: %w", err)
	}
	fields := strings.Fields(string(text))
	if len(fields) != n {
		return nil, fmt.Errorf("read setting of the namespace: %s holds %q, want %d numbers", path, text, n)
	}
	out := make([]uint64, n)
	for i, f := range fields {
		if out[i], err = strconv.ParseUint(f, 10, 32); err != nil {
			return nil, fmt.Errorf("read setting of the namespace: %s: %w", path, err)
		}
	}
	return out, nil
}
