package main

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"

	"github.com/shoal-project/shoal/tests/harness"
)

// serve serves on the node what the suite expects at addresses of 127.0.0.1: the API of the
// cluster, the two ports of a kubelet that need no credential, which the agent does not have,
// and the unit.
func (n *nodeMachine) serve() error {
	config, err := harness.RESTConfig(n.agent.NetNS, n.cluster.Kubeconfig())
	if err != nil {
		return err
	}
	admin, err := rest.TLSConfigFor(config)
	if err != nil {
		return err
	}
	kubelet := proxy(&url.URL{Scheme: "https", Host: n.agent.Address + ":10250"}, config,
		&tls.Config{Certificates: admin.Certificates, GetClientCertificate: admin.GetClientCertificate,
			InsecureSkipVerify: true}) // of a machine of this process
	direct := kubelet.Director
	kubelet.Director = func(r *http.Request) {
		direct(r)
		// Beside the certificate, which counts for nothing while a spec has another clientCAFile.
		r.Header.Set("Authorization", "Bearer "+n.token)
	}
	kubelet.ModifyResponse = showReadOnlyPort
	api := proxy(&url.URL{Scheme: "https", Host: n.cluster.Address + ":6443"}, config,
		&tls.Config{RootCAs: admin.RootCAs})
	through := api.Director
	api.Director = func(r *http.Request) {
		through(r)
		if ofNodes(r) {
			r.Header.Set("Accept", "application/json")
		}
	}
	api.ModifyResponse = func(r *http.Response) error { return errors.Join(showReadOnlyPort(r), hidePressure(r)) }
	handlers := map[string]http.Handler{
		"127.0.0.1:8080":  configzOf(kubelet, api),
		"127.0.0.1:10255": kubelet,
		"127.0.0.1:10248": kubelet,
		unitAddress:       http.HandlerFunc(n.serveUnit),
	}
	if n.proxied {
		handlers["127.0.0.1:8080"] = n.attached(handlers["127.0.0.1:8080"])
	}
	if n.standalone {
		handlers[standaloneAddress] = kubelet
	}
	for address, handler := range handlers {
		var listener net.Listener
		if err := harness.Inside(n.agent.NetNS, func() (err error) {
			listener, err = net.Listen("tcp", address)
			return err
		}); err != nil {
			return err
		}
		if address == standaloneAddress {
			if listener, err = withTLS(listener); err != nil {
				return err
			}
		}
		server := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}
		go func() { _ = server.Serve(listener) }()
	}
	return nil
}

// configzOf passes requests for the node's configuration on to the kubelet, and others to the
// API: its own credential counts for nothing while a spec has another clientCAFile.
func configzOf(kubelet, api http.Handler) http.Handler {
	const path = "/api/v1/nodes/node1/proxy"
	direct := http.StripPrefix(path, kubelet)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == path+"/configz" {
			direct.ServeHTTP(w, r)
			return
		}
		api.ServeHTTP(w, r)
	})
}

// standaloneAddress is where the suite asks a kubelet without an API server with a credential
// that is good for nothing: its own takes any.
const standaloneAddress = "127.0.0.1:10250"

// withTLS shows a certificate that nobody has signed.
func withTLS(l net.Listener) (net.Listener, error) {
	certPEM, key, err := cert.GenerateSelfSignedCertKey("127.0.0.1", nil, nil)
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(certPEM, key)
	if err != nil {
		return nil, err
	}
	return tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{pair}}), nil
}

// proxy passes requests on by HTTP/1.1, which streams of SPDY need.
func proxy(to *url.URL, config *rest.Config, tlsConfig *tls.Config) *httputil.ReverseProxy {
	p := httputil.NewSingleHostReverseProxy(to)
	tlsConfig.NextProtos = []string{"http/1.1"}
	p.Transport = &http.Transport{DialContext: config.Dial, TLSClientConfig: tlsConfig, MaxIdleConnsPerHost: 100}
	p.FlushInterval = -1
	return p
}

// showReadOnlyPort has the kubelet's configuration tell of the port that is served here.
func showReadOnlyPort(r *http.Response) error {
	if !strings.HasSuffix(r.Request.URL.Path, "/configz") || r.StatusCode != http.StatusOK {
		return nil
	}
	return edit(r, func(configz map[string]any) {
		if k, ok := configz["kubeletconfig"].(map[string]any); ok {
			k["readOnlyPort"], k["address"] = 10255, "127.0.0.1"
		}
	})
}

// ofNodes tells whether a request is for the node, or the list of nodes.
func ofNodes(r *http.Request) bool {
	name, ok := strings.CutPrefix(r.URL.Path, "/api/v1/nodes")
	return ok && r.Method == http.MethodGet && strings.Count(name, "/") < 2 && r.URL.Query().Get("watch") == ""
}

// hidePressure takes the taints of pressure from nodes: where the suite runs, no controller
// sets them, and it takes a node with one for none.
func hidePressure(r *http.Response) error {
	if !ofNodes(r.Request) || r.StatusCode != http.StatusOK {
		return nil
	}
	return edit(r, func(answer map[string]any) {
		list, ok := answer["items"].([]any)
		if !ok {
			list = []any{answer}
		}
		for _, n := range list {
			node, _ := n.(map[string]any)
			if spec, ok := node["spec"].(map[string]any); ok {
				spec["taints"] = slices.DeleteFunc(taintsOf(spec), func(t any) bool {
					taint, _ := t.(map[string]any)
					key, _ := taint["key"].(string)
					return strings.HasSuffix(key, "-pressure")
				})
			}
		}
	})
}

func taintsOf(spec map[string]any) []any {
	list, _ := spec["taints"].([]any)
	return list
}

// edit changes an answer in JSON.
func edit(r *http.Response, change func(map[string]any)) error {
	data, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	r.Body.Close()
	var answer map[string]any
	if err := json.Unmarshal(data, &answer); err != nil {
		return err
	}
	change(answer)
	if data, err = json.Marshal(answer); err != nil {
		return err
	}
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(data)), int64(len(data))
	r.Header.Set("Content-Length", strconv.Itoa(len(data)))
	return nil
}

func (n *nodeMachine) serveUnit(w http.ResponseWriter, r *http.Request) {
	verb := strings.TrimPrefix(r.URL.Path, "/")
	if verb == "list-units" {
		if n.agent.Running() || r.FormValue("running") != "true" {
			fmt.Fprintf(w, "%s.service loaded active running\n", unitName)
		}
		return
	}
	if err := n.unit(verb); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}
