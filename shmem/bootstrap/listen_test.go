package bootstrap

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"syscall"
	"testing"
)

// machine is one with several networks.
var machine = []network{
	{name: "lo", loopback: true, ips: []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("::1")}},
	{name: "docker0", ips: []netip.Addr{netip.MustParseAddr("172.17.0.1")}},
	{name: "eth0", ips: []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")}},
	{name: "eth1", ips: []netip.Addr{netip.MustParseAddr("10.0.1.1"), netip.MustParseAddr("fd00::2")}},
	{name: "ib0", ips: []netip.Addr{netip.MustParseAddr("10.1.0.1")}},
}

func TestChoose(t *testing.T) {
	for filter, want := range map[string]string{
		"":               "10.0.0.1 fd00::1 10.0.1.1 127.0.0.1", // at most four, loopback among them, containers last
		"ib":             "10.1.0.1",
		"ib,eth1":        "10.0.1.1 fd00::2 10.1.0.1",
		"eth":            "10.0.0.1 fd00::1 10.0.1.1 fd00::2",
		"=eth1":          "10.0.1.1 fd00::2",
		"=eth1:0,ib0:7":  "10.0.1.1 fd00::2 10.1.0.1",
		"=eth":           "",
		"wlan":           "",
		"docker":         "172.17.0.1",
		"lo":             "127.0.0.1",
		"^eth,docker":    "10.1.0.1 127.0.0.1",
		"^=eth0,docker":  "172.17.0.1 10.0.1.1 fd00::2 127.0.0.1",
		"^lo,docker,eth": "10.1.0.1",
		" ib , ":         "10.1.0.1",
	} {
		got, err := choose(machine, filter)
		var text []string
		for _, ip := range got {
			text = append(text, ip.String())
		}
		if strings.Join(text, " ") != want || (err == nil) != (want != "") {
			t.Errorf("%q: %v, %v; want %s", filter, text, err, want)
		}
		if err != nil && !strings.Contains(err.Error(), "there are lo, docker0, eth0, eth1, ib0") {
			t.Errorf("%q: %v", filter, err)
		}
	}
	if got, err := choose(machine[:1], ""); err != nil || len(got) != 1 {
		t.Errorf("a machine without networks: %v, %v", got, err)
	}
	if _, err := choose(nil, ""); err == nil {
		t.Error("a machine without loopback")
	}
}

// Roots on IPv4, IPv6, all networks and a fixed port are found by the id that they give.
func TestListen(t *testing.T) {
	none := func(string) (string, bool) { return "", false }
	for name, o := range map[string]ListenOptions{
		"default": {Lookup: none},
		"local":   {Local: true},
		"v6":      {Address: "[::1]:" + strings.Split(freePort(t), ":")[1]},
		"fixed":   {Address: freePort(t)},
		"all":     {Address: ":" + strings.Split(freePort(t), ":")[1]},
		"alias": {Lookup: func(name string) (string, bool) {
			return map[string]string{aliasInterface: "=lo"}[name], name == aliasInterface
		}},
	} {
		t.Run(name, func(t *testing.T) {
			id, err := NewUniqueID(t.Context(), o)
			if name == "v6" && errors.Is(err, syscall.EADDRNOTAVAIL) {
				t.Skip("no IPv6 here")
			}
			if err != nil {
				t.Fatal(err)
			}
			at, err := id.Addresses()
			if err != nil {
				t.Fatal(err)
			}
			t.Log(at)
			if name == "alias" && (len(at) != 1 || !at[0].Addr().IsLoopback()) {
				t.Errorf("%v", at)
			}
			all := joinAll(t, id, 2, quick)
			for i, err := range each(2, func(i int) error { return all[i].Barrier(t.Context()) }) {
				if err != nil {
					t.Errorf("PE %d: %v", i, err)
				}
			}
			closeAll(t, all)
		})
	}
	port := freePort(t)
	r, err := Listen(t.Context(), ListenOptions{Address: port})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := Listen(t.Context(), ListenOptions{Address: port}); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a port that is taken: %v", err)
	}
	for _, bad := range []ListenOptions{
		{Address: "nowhere"}, {Address: "a:b"}, {Address: "127.0.0.1:99999"}, {Interface: "=no such"}, {Token: "short", Local: true},
		{Address: "192.0.2.1:7"}, // of documentation: not this machine's
	} {
		if _, err := Listen(t.Context(), bad); err == nil {
			t.Errorf("%+v", bad)
		}
	}
}

// ListenAt and TokenID meet, also where the name of the machine is not one of its addresses.
func TestListenAt(t *testing.T) {
	const token = "a secret that all know"
	port := strings.Split(freePort(t), ":")[1]
	for _, host := range []string{"127.0.0.1", "localhost"} {
		r, err := ListenAt(t.Context(), host+":"+port, token, ListenOptions{})
		if err != nil {
			t.Fatal(err)
		}
		id, err := TokenID(t.Context(), host+":"+port, token)
		if err != nil {
			t.Fatal(err)
		}
		b, err := Join(t.Context(), id, 0, 1, quick)
		if err != nil {
			t.Fatal(err)
		}
		b.Close()
		r.Close()
	}
	r, err := ListenAt(t.Context(), "192.0.2.1:"+port, token, ListenOptions{}) // as with a translated address
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	id, err := TokenID(context.Background(), "127.0.0.1:"+port, token)
	if err != nil {
		t.Fatal(err)
	}
	b, err := Join(t.Context(), id, 0, 1, quick)
	if err != nil {
		t.Fatal(err)
	}
	b.Close()
	if _, err := ListenAt(t.Context(), "127.0.0.1", token, ListenOptions{}); err == nil {
		t.Error("no port")
	}
	if _, err := TokenID(t.Context(), "127.0.0.1:1", "short"); err == nil {
		t.Error("a short token")
	}
}
