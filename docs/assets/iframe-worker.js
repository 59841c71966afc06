/* A page on file:// may not start a Worker, and search needs one: there, run it in a hidden frame.
 * Messages are passed on as events; those sent before the frame is ready wait. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.addEventListener("load", () => this.begin(String(url)), { once: true });
      document.body.appendChild(this.frame);
    }

    begin(url) {
      const inside = this.frame.contentWindow;
      inside.postMessage = data => this.hear(data);
      inside.importScripts = (...urls) =>
        urls.reduce((before, each) => before.then(() => this.load(each)), Promise.resolve());
      this.load(url).then(() => {
        this.ready = true;
        this.waiting.splice(0).forEach(data => this.postMessage(data));
      });
    }

    load(url) {
      return new Promise((done, failed) => {
        const script = this.frame.contentDocument.createElement("script");
        script.src = url;
        script.onload = done;
        script.onerror = failed;
        this.frame.contentDocument.body.appendChild(script);
      });
    }

    hear(data) {
      const event = new MessageEvent("message", { data });
      this.dispatchEvent(event);
      if (this.onmessage) this.onmessage(event);
    }

    postMessage(data) {
      if (!this.ready) return void this.waiting.push(data);
      const event = new MessageEvent("message", { data });
      this.frame.contentWindow.dispatchEvent(event);
    }

    terminate() {
      this.frame.remove();
    }
  };
}
