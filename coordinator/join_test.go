package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"

	"github.com/shoal-project/shoal/coordinator/joinapi"
)

// joining is what machines see of a coordinator.
type joiningMachine struct {
	t   *testing.T
	url string
	ca  []byte
}

// get asks as whoever c says, and returns the status and the text.
func (m joiningMachine) ask(method, path string, c rest.Config) (int, string) {
	m.t.Helper()
	c.Host, c.CAData = m.url, m.ca
	client, err := rest.HTTPClientFor(&c)
	if err != nil {
		m.t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(m.t.Context(), method, m.url+path, nil)
	if err != nil {
		m.t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		m.t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		m.t.Fatal(err)
	}
	return resp.StatusCode, strings.TrimSpace(string(data))
}

// request asks for a node's certificate, and returns the configuration with it, or
// the reason of its denial.
func (m joiningMachine) request(node, token string) (rest.Config, string) {
	m.t.Helper()
	bearer := rest.Config{Host: m.url, BearerToken: token}
	bearer.CAData = m.ca
	c, err := kubernetes.NewForConfig(&bearer)
	if err != nil {
		m.t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		m.t.Fatal(err)
	}
	subject := &pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}}
	data, err := cert.MakeCSR(key, subject, nil, nil)
	if err != nil {
		m.t.Fatal(err)
	}
	requests := c.CertificatesV1().CertificateSigningRequests()
	made, err := requests.Create(m.t.Context(), &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "join-"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: data, SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
			Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return rest.Config{}, err.Error()
	}
	keyPEM, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		m.t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		got, err := requests.Get(m.t.Context(), made.Name, metav1.GetOptions{})
		if err != nil {
			return rest.Config{}, err.Error()
		}
		if len(got.Status.Certificate) > 0 {
			out := rest.Config{}
			out.CertData, out.KeyData = got.Status.Certificate, keyPEM
			return out, ""
		}
		if len(got.Status.Conditions) > 0 && got.Status.Conditions[0].Type == certificatesv1.CertificateDenied {
			return rest.Config{}, got.Status.Conditions[0].Reason
		}
	}
	return rest.Config{}, "nothing within a minute"
}

func makeToken(t *testing.T, c kubernetes.Interface, id string, more map[string]string) string {
	t.Helper()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "bootstrap-token-" + id},
		Type: "bootstrap.kubernetes.io/token", StringData: map[string]string{
			"token-id": id, "token-secret": "0123456789abcdef", "usage-bootstrap-authentication": "true",
			"auth-extra-groups": joinapi.NodesGroup,
		}}
	for k, v := range more {
		secret.StringData[k] = v
	}
	if _, err := c.CoreV1().Secrets("kube-system").Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return id + ".0123456789abcdef"
}

// TestJoin walks a machine's way into the cluster and out of it, at a whole
// coordinator, and what those may not do who are not on it.
func TestJoin(t *testing.T) {
	dir, port := t.TempDir(), freePort(t)
	p := coordinator(t, dir, port)
	admin := client(t, p, dir, port)
	ca, err := os.ReadFile(dir + "/coordinator/pki/ca.crt")
	if err != nil {
		t.Fatal(err)
	}
	m := joiningMachine{t, fmt.Sprintf("https://127.0.0.1:%d", port), ca}
	nobody := rest.Config{}
	if code, text := m.ask("GET", joinapi.CAPath, nobody); code != 200 || text != strings.TrimSpace(string(ca)) {
		t.Errorf("the CA, to anybody: %d %s", code, text)
	}
	token := rest.Config{BearerToken: makeToken(t, admin, "aaaaaa", map[string]string{joinapi.UsesKey: "3"})}
	if code, _ := m.ask("GET", joinapi.NodePath, nobody); code != 403 {
		t.Errorf("keys are shown to nobody: %d", code)
	}
	code, _ := m.ask("GET", joinapi.NodePath, token)
	for end := time.Now().Add(time.Minute); code == 401 && time.Now().Before(end); { // the token is not heard of yet
		time.Sleep(10 * time.Millisecond)
		code, _ = m.ask("GET", joinapi.NodePath, token)
	}
	if code != 403 {
		t.Errorf("keys are shown to who is no node: %d", code)
	}
	if code, _ := m.ask("GET", joinapi.ClusterPath, nobody); code != 403 {
		t.Errorf("an unknown one is answered: %d", code)
	}
	var answer joinapi.Cluster
	code, text := m.ask("GET", joinapi.ClusterPath+"?name=n1", token)
	if err := json.Unmarshal([]byte(text), &answer); err != nil || code != 200 || answer.Refused != "" ||
		time.Since(answer.Time).Abs() > time.Minute {
		t.Fatalf("%d %s, %v", code, text, err)
	}

	// Eight ask at once; the token is for three.
	var wg sync.WaitGroup
	var mu sync.Mutex
	var nodes []rest.Config
	denied := 0
	for i := range 8 {
		wg.Go(func() {
			node, why := m.request(fmt.Sprint("n", i), token.BearerToken)
			mu.Lock()
			defer mu.Unlock()
			switch why {
			case "":
				nodes = append(nodes, node)
			case joinapi.ReasonTokenUsedUp:
				denied++
			default:
				t.Error(why)
			}
		})
	}
	wg.Wait()
	if len(nodes) != 3 || denied != 5 {
		t.Fatalf("%d joined and %d were denied with a token for three", len(nodes), denied)
	}
	if _, text := m.ask("GET", joinapi.ClusterPath+"?name=x", token); !strings.Contains(text, joinapi.ReasonTokenUsedUp) {
		t.Errorf("a token that is used up is told %s", text)
	}
	m.leaves(admin, nodes[0])
}

// leaves has a node ask for its settings, and then leave.
func (m joiningMachine) leaves(admin kubernetes.Interface, self rest.Config) {
	t := m.t
	keys, err := tls.X509KeyPair(self.CertData, self.KeyData)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(keys.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	name := strings.TrimPrefix(leaf.Subject.CommonName, "system:node:")
	var node joinapi.Node
	code, text := m.ask("GET", joinapi.NodePath, self)
	if err := json.Unmarshal([]byte(text), &node); err != nil || code != 200 || len(node.GossipKeys) == 0 ||
		node.ClusterDomain != "cluster.local" || node.ClusterCIDR != "10.244.0.0/16" {
		t.Fatalf("%d %s, %v", code, text, err)
	}
	made := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	made.Spec.Taints = []corev1.Taint{{Key: "admin.example.com/keep-out", Effect: corev1.TaintEffectNoSchedule}}
	if made, err = admin.CoreV1().Nodes().Create(t.Context(), made, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if code, text := m.ask("DELETE", joinapi.NodePath, self); code != 409 ||
		!strings.Contains(text, "kubectl delete node "+name) {
		t.Errorf("a tainted Node deletes itself: %d %s", code, text)
	}
	other := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "other"}}
	if _, err := admin.CoreV1().Nodes().Create(t.Context(), other, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	made.Spec.Taints = nil
	for apierrors.IsConflict(update(t, admin, made)) { // a controller wrote meanwhile
		if made, err = admin.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{}); err != nil {
			t.Fatal(err)
		}
		made.Spec.Taints = nil
	}
	for code = 503; code == 503; { // a controller writes meanwhile
		code, text = m.ask("DELETE", joinapi.NodePath, self)
	}
	if code != 200 {
		t.Errorf("%d %s", code, text)
	}
	if _, err := admin.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the Node is still there: %v", err)
	}
	if code, _ := m.ask("DELETE", joinapi.NodePath, self); code != 200 {
		t.Errorf("leaving twice: %d", code)
	}
	if _, err := admin.CoreV1().Nodes().Get(t.Context(), "other", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
}

func update(t *testing.T, c kubernetes.Interface, n *corev1.Node) error {
	_, err := c.CoreV1().Nodes().Update(t.Context(), n, metav1.UpdateOptions{})
	if err != nil && !apierrors.IsConflict(err) {
		t.Fatal(err)
	}
	return err
}
