// Package tokensecret fills the Secrets of the type
// kubernetes.io/service-account-token (SEC-42..44): each gets a token of the
// ServiceAccount that its annotation names, the CA and its namespace. It goes when
// its account does, and a reference that the account has to it goes with it.
package tokensecret
