// SPDX-License-Identifier: Apache-2.0

package coverage

import (
	"io"
	"log/slog"
	"net/netip"
	"runtime"
	"testing"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/kernel"
	"github.com/sockhealth/sockhealth/internal/lab"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader/loadertest"
)

// BenchmarkScan is a scan, without rest, over 10,000 sockets in two namespaces:
// named by the policy and bounded, which costs a look each; and not named.
func BenchmarkScan(b *testing.B) {
	const pairs = 5000
	p := loadertest.Load(b)
	loadertest.Need(b, p, kernel.Adopt)
	c := &checked{Lab: labtest.New(b, lab.Options{}), Programs: p, cgroup: labtest.Cgroup(b)}
	ln := labtest.Listen(b, c.Server, netip.AddrPortFrom(c.ServerAddr4, 0))
	for range pairs {
		labtest.Dial(b, c.Client, netip.AddrPort{}, labtest.Addr(ln.Addr()))
		labtest.Accept(b, ln)
	}
	c.Scanner = New(Config{Programs: p, Namespaces: c, Cgroup: c.cgroup.Path, Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	for _, one := range []struct {
		name, policy string
		expected     int
	}{{"named", outAndIn, 2 * pairs}, {"others", nobody, 0}} {
		b.Run(one.name, func(b *testing.B) {
			(&loadertest.Bed{Programs: p}).SetPolicy(b, one.policy)
			for range 2 {
				c.adopt(b)
			}
			runtime.LockOSThread() // the scan's CPU is this thread's
			defer runtime.UnlockOSThread()
			began := conn.ThreadCPU()
			for b.Loop() {
				met := 0
				_, err := c.all(b.Context(), p.InForce(), nil, nil, func(f *Found) error {
					if f.Reason == "" {
						met++
					}
					return nil
				})
				if err != nil || met != one.expected {
					b.Fatalf("met %d, want %d: %v", met, one.expected, err)
				}
			}
			b.ReportMetric((conn.ThreadCPU()-began).Seconds()*1e3/float64(b.N), "cpu-ms/10k-sockets")
		})
	}
}
