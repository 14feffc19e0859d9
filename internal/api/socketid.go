// SPDX-License-Identifier: Apache-2.0

package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"github.com/sockhealth/sockhealth/internal/conn"
)

const exampleSocket = `{"local": "10.1.1.1:40122", "peer": "10.20.1.2:7100"}`

// socketID names one socket on the admin socket, as the body of a request.
type socketID struct {
	Local  string `json:"local,omitempty"`
	Peer   string `json:"peer,omitempty"`
	Cookie uint64 `json:"cookie,omitempty"`
	Netns  uint32 `json:"netns,omitempty"`
}

// newSocketID puts an ID into the words of the API; what is zero is left out.
func newSocketID(id conn.ID) socketID {
	return socketID{Local: addrText(id.Local), Peer: addrText(id.Remote), Cookie: id.Cookie, Netns: id.Netns}
}

// query returns it as the query of a request.
func (s socketID) query() string {
	v := make(url.Values)
	if s.Local != "" {
		v.Set("local", s.Local)
	}
	if s.Peer != "" {
		v.Set("peer", s.Peer)
	}
	if s.Cookie != 0 {
		v.Set("cookie", strconv.FormatUint(s.Cookie, 10))
	}
	if s.Netns != 0 {
		v.Set("netns", strconv.FormatUint(uint64(s.Netns), 10))
	}
	return v.Encode()
}

// parseSocket decodes the body that names a socket.
func parseSocket(data []byte) (conn.ID, error) {
	var id conn.ID
	err := parseObject(data, exampleSocket, func(name string, value json.Token) error {
		return setSocket(&id, fmt.Sprintf("field %q", name), name, value)
	})
	if err == nil {
		err = checkSocket(id)
	}
	if err != nil {
		return conn.ID{}, err
	}
	return id, nil
}

// socketOf reads the query that names a socket, or answers where it is at fault.
func socketOf(w http.ResponseWriter, r *http.Request) (conn.ID, bool) {
	values, ok := query(w, r, "local", "peer", "cookie", "netns")
	if !ok {
		return conn.ID{}, false
	}
	var id conn.ID
	for _, name := range []string{"local", "peer", "cookie", "netns"} {
		if !values.Has(name) {
			continue
		}
		var value json.Token = values.Get(name)
		if name == "cookie" || name == "netns" {
			value = json.Number(values.Get(name))
		}
		if err := setSocket(&id, fmt.Sprintf("query parameter %q", name), name, value); err != nil {
			refuse(w, http.StatusBadRequest, "%v", err)
			return conn.ID{}, false
		}
	}
	if err := checkSocket(id); err != nil {
		refuse(w, http.StatusBadRequest, "%v", err)
		return conn.ID{}, false
	}
	return id, true
}

// setSocket stores one part of an ID; what names where it stands.
func setSocket(id *conn.ID, what, name string, value json.Token) (err error) {
	switch name {
	case "local":
		id.Local, err = addrPort(what, value)
	case "peer":
		id.Remote, err = addrPort(what, value)
	case "cookie":
		id.Cookie, err = cookie(what, value)
	case "netns":
		n, ok := value.(json.Number)
		if !ok {
			return fmt.Errorf("%s is %s, want a namespace's inode number, as in /proc/PID/ns/net", what, kind(value))
		}
		id.Netns, err = parseNetns(what, n.String())
	default:
		err = fmt.Errorf("unknown field %s: the fields are local, peer, cookie and netns", quote(name))
	}
	return err
}

// checkSocket looks at the parts together.
func checkSocket(id conn.ID) error {
	switch {
	case id.Local.IsValid() && id.Remote.IsValid() && id.Local.Addr().Is4() != id.Remote.Addr().Is4():
		return fmt.Errorf(`"local" and "peer" are of different address families: %s and %s`, id.Local, id.Remote)
	case !id.Local.IsValid() && id.Cookie == 0:
		return errors.New(`no socket is named: give "local" (its own address and port) or "cookie" (SO_COOKIE)`)
	}
	return nil
}
