// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"net/netip"

	"github.com/google/go-cmp/cmp"
)

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

var comparePrefixes = cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })

// knownKeys are all keys the decoder knows, by their path: "version",
// "defaults.keepalive.idle", "peers.cidrs".
func knownKeys() map[string]field {
	d, keys := &decoder{}, make(map[string]field)
	var add func(path string, fields []field)
	add = func(path string, fields []field) {
		for _, f := range fields {
			keys[path+f.name] = f
			add(path+f.name+".", f.sub)
		}
	}
	add("", d.fileFields(&file{}))
	add("peers.", d.peerFields(&entry{}))
	return keys
}
