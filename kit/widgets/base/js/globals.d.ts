// What the page has beside our modules.

declare module "*.css" {
  const text: string;
  export default text;
}

interface KitPage {
  isDark(): boolean;
  paint(figure: any, index: any): void;
  twin(color: string): string;
}

interface Window {
  Bokeh?: any;
  kitPage?: KitPage;
  kitGraphviz?: Promise<any>; // graphviz, compiled to WebAssembly
  kitReport?: any; // the state of a saved report
}

declare const Bokeh: any;
declare function unpacked(id: string): Promise<Response>; // a packed block of a saved page
