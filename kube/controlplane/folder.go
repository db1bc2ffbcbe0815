package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// cluster is a control plane and the folder that it lives in.
type cluster struct {
	dir    string
	server string // URL of the API server
	host   string // address of the API server
	port   string // of the API server
	store  string // URL of etcd, once it runs
	tokens map[string]string
}

// users are who has a token, and their group.
var users = map[string]string{
	"admin":                          "system:masters",
	"system:kube-scheduler":          "",
	"system:kube-controller-manager": "",
	"system:node:node0":              "system:nodes",
}

// lay makes the keys, tokens and kubeconfigs of a cluster in a folder, unless they are there, with the address of its API server,
// or with a port of its own where that is 0.
func lay(dir, address string) (*cluster, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	c := &cluster{dir: dir, tokens: map[string]string{}}
	said, err := os.ReadFile(c.path("address"))
	if err == nil {
		address = string(said)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if c.host, c.port, err = net.SplitHostPort(address); err != nil {
		return nil, err
	}
	if c.port == "0" {
		if c.port, err = free(); err != nil {
			return nil, err
		}
	}
	c.server = "https://" + net.JoinHostPort(c.host, c.port)
	if said != nil {
		return c, nil
	}
	if err := errors.Join(c.key(), c.kubeletClient()); err != nil {
		return nil, err
	}
	var table strings.Builder
	for user, group := range users {
		random := make([]byte, 16)
		rand.Read(random)
		c.tokens[user] = hex.EncodeToString(random)
		fmt.Fprintf(&table, "%s,%s,%s,%q\n", c.tokens[user], user, user, group)
		if err := os.WriteFile(c.kubeconfig(user), []byte(fmt.Sprintf(kubeconfig, c.server, c.tokens[user])), 0o600); err != nil {
			return nil, err
		}
	}
	return c, errors.Join(os.WriteFile(c.path("tokens.csv"), []byte(table.String()), 0o600),
		os.WriteFile(c.path("address"), []byte(net.JoinHostPort(c.host, c.port)), 0o600))
}

// kubeconfig is that of a user. The API server's certificate is its own and new in every folder.
const kubeconfig = `apiVersion: v1
kind: Config
current-context: test
contexts: [{name: test, context: {cluster: test, user: test}}]
clusters: [{name: test, cluster: {server: %q, insecure-skip-tls-verify: true}}]
users: [{name: test, user: {token: %q}}]
`

func (c *cluster) path(name string) string { return filepath.Join(c.dir, name) }

func (c *cluster) kubeconfig(user string) string {
	return c.path(user[strings.LastIndex(user, ":")+1:] + ".kubeconfig")
}

// key makes the key that tokens of service accounts are signed with.
func (c *cluster) key() error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	return os.WriteFile(c.path("sa.key"), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), 0o600)
}

// kubeletClient makes the certificate by which a kubelet knows the API server. It is its own authority.
func (c *cluster) kubeletClient() error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	about := &x509.Certificate{SerialNumber: big.NewInt(1),
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(1, 0, 0),
		Subject:  pkix.Name{CommonName: "kube-apiserver", Organization: []string{"system:masters"}},
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		IsCA: true, BasicConstraintsValid: true}
	certificate, err := x509.CreateCertificate(rand.Reader, about, about, key.Public(), key)
	if err != nil {
		return err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	write := func(name, kind string, data []byte) error {
		return os.WriteFile(c.path(name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: data}), 0o600)
	}
	return errors.Join(write("kubelet-client.key", "EC PRIVATE KEY", der), write("kubelet-client.crt", "CERTIFICATE", certificate))
}

// free returns a port that nobody has. Somebody may take it before it is used: then the start fails, and says so.
func free() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, err
}
