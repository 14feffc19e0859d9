// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// ParseService reads the ADDRESS:PORT of a service, as Explain takes it. The
// error is a clause that says what to write instead, for whoever typed it.
func ParseService(s string) (netip.AddrPort, error) {
	service, err := netip.ParseAddrPort(s)
	if err == nil && service.Port() != 0 {
		return service, nil
	}
	// Is it the port alone that is wrong?
	if i := strings.LastIndexByte(s, ':'); i >= 0 {
		port := s[i+1:]
		_, err := netip.ParseAddrPort(s[:i] + ":1")
		if err == nil && port != "" && strings.Trim(port, "0123456789") == "" {
			return netip.AddrPort{}, fmt.Errorf("port %s is none: a port is 1 to 65535", clip(port))
		}
	}
	return netip.AddrPort{}, errors.New("want an IP address and a port such as 10.20.1.2:7100 or [fd00:20::2]:7100; names are not resolved")
}
