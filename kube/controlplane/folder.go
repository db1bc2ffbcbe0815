package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
)

// cluster is a control plane and the folder that it lives in.
type cluster struct {
	dir    string
	server string // URL of the API server
	port   string // of the API server
	store  string // URL of etcd, once it runs
	tokens map[string]string
}

// users are who has a token, and their group.
var users = map[string]string{
	"admin":                          "system:masters",
	"system:kube-scheduler":          "",
	"system:kube-controller-manager": "",
}

// lay makes the keys, tokens and kubeconfigs of a cluster in a folder.
func lay(dir string) (*cluster, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	port, err := free()
	if err != nil {
		return nil, err
	}
	c := &cluster{dir: dir, server: "https://127.0.0.1:" + port, port: port, tokens: map[string]string{}}
	if err := c.key(); err != nil {
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
	return c, os.WriteFile(c.path("tokens.csv"), []byte(table.String()), 0o600)
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
