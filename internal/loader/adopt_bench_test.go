// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"net/netip"
	"testing"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/kernel"
	"github.com/sockhealth/sockhealth/internal/lab"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/loader/loadertest"
)

// BenchmarkAdopt is a pass over 5,000 connections that are in line, beside its
// rival, a walk that only looks at them.
func BenchmarkAdopt(b *testing.B) {
	const n = 5000
	p := loadertest.Load(b)
	loadertest.Need(b, p, kernel.Adopt)
	l := labtest.New(b, lab.Options{})
	(&loadertest.Bed{Programs: p}).SetPolicy(b, bothWays)
	ln := labtest.Listen(b, l.Server, netip.AddrPortFrom(l.ServerAddr4, 0))
	for range n {
		labtest.Dial(b, l.Client, netip.AddrPort{}, labtest.Addr(ln.Addr()))
		labtest.Accept(b, ln)
	}
	met := 0
	for _, way := range []struct {
		name string
		walk func() error
	}{
		{"adopt", func() error {
			_, err := p.Adopt(loader.AdoptOptions{Budget: plenty}, func(loader.Adoption) error { met++; return nil })
			return err
		}},
		{"scan", func() error { return p.Scan(func(conn.Snapshot) error { met++; return nil }) }},
	} {
		b.Run(way.name, func(b *testing.B) {
			for b.Loop() {
				met = 0
				if err := l.Client.Do(way.walk); err != nil || met != n {
					b.Fatalf("met %d: %v", met, err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/socket")
		})
	}
}
