package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// Environment variables. The second name of each is NVSHMEM's.
const (
	EnvPE          = "LSHMEM_PE"
	EnvPEs         = "LSHMEM_PES"
	EnvBootstrap   = "LSHMEM_BOOTSTRAP"
	EnvInterface   = "LSHMEM_BOOTSTRAP_INTERFACE"
	EnvAddress     = "LSHMEM_BOOTSTRAP_ADDRESS"
	EnvTimeout     = "LSHMEM_BOOTSTRAP_TIMEOUT"
	EnvJoinTimeout = "LSHMEM_BOOTSTRAP_JOIN_TIMEOUT"
	EnvHeartbeat   = "LSHMEM_BOOTSTRAP_HEARTBEAT"

	aliasInterface = "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME"
	aliasAddress   = "NVSHMEM_BOOTSTRAP_UID_SESSION_ID"
)

// listen opens what o asks for, and returns 1 to maxAddresses addresses by which others reach it.
func listen(ctx context.Context, o ListenOptions) ([]net.Listener, []netip.AddrPort, error) {
	if o.Local {
		return reached(listenLocal(ctx))
	}
	if o.Interface == "" {
		o.Interface = lookup(o.Lookup).first(EnvInterface, aliasInterface)
	}
	if o.Address == "" {
		o.Address = lookup(o.Lookup).first(EnvAddress, aliasAddress)
	}
	port := 0
	if o.Address != "" {
		host, p, err := splitAddress(o.Address)
		if err != nil {
			return nil, nil, err
		}
		if ip, err := netip.ParseAddr(host); host != "" && (err != nil || !ip.IsUnspecified()) {
			return reached(tcp(ctx, o.Address))
		}
		port = p
	}
	list, err := networks()
	if err != nil {
		return nil, nil, err
	}
	chosen, err := choose(list, o.Interface)
	if err != nil {
		return nil, nil, err
	}
	if port != 0 {
		l, err := tcp(ctx, net.JoinHostPort("", strconv.Itoa(port)))
		if err != nil {
			return nil, nil, err
		}
		var at []netip.AddrPort
		for _, ip := range chosen {
			at = append(at, netip.AddrPortFrom(ip, uint16(port)))
		}
		return []net.Listener{l}, at, nil
	}
	var all []net.Listener
	var at []netip.AddrPort
	var errs []error
	for _, ip := range chosen {
		l, a, err := reached(tcp(ctx, netip.AddrPortFrom(ip, 0).String()))
		if err != nil { // an IPv6 address that is not usable yet
			errs = append(errs, err)
			continue
		}
		all, at = append(all, l...), append(at, a...)
	}
	if len(all) == 0 {
		return nil, nil, errors.Join(errs...)
	}
	return all, at, nil
}

// reached is a listener that is reached by its own address.
func reached(l net.Listener, err error) ([]net.Listener, []netip.AddrPort, error) {
	if err != nil {
		return nil, nil, err
	}
	a := l.Addr().(*net.TCPAddr).AddrPort()
	return []net.Listener{l}, []netip.AddrPort{netip.AddrPortFrom(a.Addr().Unmap(), a.Port())}, nil
}

func listenLocal(ctx context.Context) (net.Listener, error) {
	l, err := tcp(ctx, "127.0.0.1:0")
	if err != nil {
		var err6 error
		if l, err6 = tcp(ctx, "[::1]:0"); err6 != nil {
			return nil, errors.Join(err, err6)
		}
	}
	return l, nil
}

func tcp(ctx context.Context, address string) (net.Listener, error) {
	var c net.ListenConfig
	l, err := c.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen for PEs: %w", err)
	}
	return l, nil
}

// splitAddress checks HOST:PORT. HOST may be empty.
func splitAddress(address string) (string, int, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return "", 0, fmt.Errorf("address %q is not HOST:PORT, such as node1:18515 or [fd00::1]:18515", address)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return "", 0, fmt.Errorf("address %q: a port is a number from 1 to 65535", address)
	}
	return host, int(n), nil
}

// network is an interface of the machine.
type network struct {
	name     string
	loopback bool
	ips      []netip.Addr
}

// networks lists those that are up and have addresses that mean the same on other machines.
func networks() ([]network, error) {
	interfaces, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list network interfaces: %w", err)
	}
	var list []network
	for _, i := range interfaces {
		if i.Flags&net.FlagUp == 0 {
			continue
		}
		addresses, err := i.Addrs()
		if err != nil {
			continue // it went away
		}
		n := network{name: i.Name, loopback: i.Flags&net.FlagLoopback != 0}
		for _, a := range addresses {
			prefix, err := netip.ParsePrefix(a.String())
			if err != nil {
				continue
			}
			if ip := prefix.Addr().Unmap(); ip.IsGlobalUnicast() || ip.IsLoopback() {
				n.ips = append(n.ips, ip)
			}
		}
		if len(n.ips) > 0 {
			list = append(list, n)
		}
	}
	return list, nil
}

// inner are beginnings of names of interfaces that mostly lead to containers of the same machine. They come last.
var inner = []string{"docker", "br-", "virbr", "veth", "cni", "podman", "lxc"}

// choose returns up to maxAddresses addresses of the interfaces that a filter lets pass, see ListenOptions.Interface.
// Without a filter one of them is loopback's.
func choose(list []network, filter string) ([]netip.Addr, error) {
	var first, last, loop []netip.Addr
	for _, n := range list {
		switch {
		case filter != "" && !matches(n.name, filter):
		case n.loopback:
			loop = append(loop, n.ips...)
		case filter == "" && hasPrefix(n.name, inner):
			last = append(last, n.ips...)
		default:
			first = append(first, n.ips...)
		}
	}
	outer := append(first, last...)
	if len(outer)+len(loop) == 0 {
		names := make([]string, len(list))
		for i, n := range list {
			names[i] = n.name
		}
		if filter == "" {
			return nil, errors.New("this machine has no network interface with an address, not even loopback")
		}
		return nil, fmt.Errorf("no network interface with an address matches %q; there are %s", filter, strings.Join(names, ", "))
	}
	loop = loop[:min(len(loop), 1)]
	outer = outer[:min(len(outer), maxAddresses-len(loop))]
	return append(outer, loop...), nil
}

// matches says whether a filter lets an interface pass.
func matches(name, filter string) bool {
	exclude := strings.HasPrefix(filter, "^")
	filter = strings.TrimPrefix(filter, "^")
	exact := strings.HasPrefix(filter, "=")
	filter = strings.TrimPrefix(filter, "=")
	found := false
	for _, item := range strings.Split(filter, ",") {
		item, _, _ = strings.Cut(strings.TrimSpace(item), ":") // NAME:PORT, as others write it
		if item == "" {
			continue
		}
		found = found || name == item || !exact && strings.HasPrefix(name, item)
	}
	return found != exclude
}

func hasPrefix(name string, list []string) bool {
	for _, p := range list {
		if strings.HasPrefix(name, p) {
			return true
		}
	}
	return false
}
